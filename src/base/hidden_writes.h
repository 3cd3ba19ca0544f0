// ATen's operators that write into operands although their schema does not say so: the rows of hidden_writes.def.
#pragma once

#include <string>
#include <vector>

namespace abele {

struct HiddenWrites {
  int training_arg = -1;  // index of the bool argument that turns the writes on; -1: always
  std::vector<int> args;  // indices of the written arguments
};

/// The row of an operator; null if its schema shows all its writes. op: name and overload,
/// "aten::native_batch_norm.out".
const HiddenWrites* hiddenWrites(const std::string& op);

}  // namespace abele
