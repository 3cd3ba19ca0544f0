// For users of the library: arguments and results of a compiled program, for callers that do not know them, as with a
// program loaded from a file. Read model.h first.
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
  std::vector<int64_t> sizes;  // of one call: dim 0 is Options::combinedBatchSize
  std::string type;            // as c10::toString says it: "Float", "Long"
};

/// The tensors that model(std::vector<at::Tensor>) of a loaded program takes, in order. Throws E0705 before compile.
ABELE_API std::vector<ProgramValue> inputsOf(CompiledModel& model);
/// Names of the last call's results, or of those in the file of a loaded program; in order. Throws E0705 before
/// compile.
ABELE_API std::vector<std::string> resultNames(CompiledModel& model);
/// Is it a program for training that save() wrote to this file? Throws E0712, E0501.
ABELE_API bool isTrainingProgram(const std::string& path);

}  // namespace abele
