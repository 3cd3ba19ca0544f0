// For users of the library: what a compiled program takes and returns, for callers that learn it from the program, such
// as one that was loaded from a file. Read model.h first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "abele/export.h"
#include "abele/model.h"

namespace abele {

/// A tensor among the arguments or results of a call.
struct ProgramValue {
  std::string name;            // where it stands: "0", "1.mask"; of a single map its keys alone: "mask"
  std::vector<int64_t> sizes;  // of one call: dim 0 is Options::combinedBatchSize
  std::string type;            // as c10::toString says it: "Float", "Long"
};

/// The tensors that model(std::vector<at::Tensor>) of a loaded program takes, in order. Throws E0705 before compile.
ABELE_API std::vector<ProgramValue> inputsOf(CompiledModel& model);
/// Names of what the last call returned, or of what the file of a loaded program says; in order. Throws E0705 before
/// compile.
ABELE_API std::vector<std::string> resultNames(CompiledModel& model);
/// Is it a program for training that save() wrote to this file? Throws E0712, E0501.
ABELE_API bool isTrainingProgram(const std::string& path);

}  // namespace abele
