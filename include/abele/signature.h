// For users of the library: the arguments and results of a compiled program, for callers that do not know them, such as
// callers of a program loaded from a file. Read model.h first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "abele/export.h"
#include "abele/model.h"

namespace abele {

/// A tensor among the arguments or results of a call.
struct ProgramValue {
  std::string name;            // its position: "0", "1.mask"; in a single map only the key: "mask"
  std::vector<int64_t> sizes;  // sizes in one call; dim 0 is Options::combinedBatchSize
  std::string type;            // as c10::toString writes it: "Float", "Long"
};

/// The tensors that model(std::vector<at::Tensor>) of a loaded program takes, in order. Throws E0705 before compile.
ABELE_API std::vector<ProgramValue> inputsOf(CompiledModel& model);
/// Names of the last call's results, in order; for a loaded program the names in its file. Throws E0705 before compile.
ABELE_API std::vector<std::string> resultNames(CompiledModel& model);
/// Returns true if the file holds a training program that save() wrote. Throws E0712, E0501.
ABELE_API bool isTrainingProgram(const std::string& path);

}  // namespace abele
