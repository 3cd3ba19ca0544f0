// The arguments and results of a compiled program.
#include "abele/signature.h"

#include <c10/core/ScalarType.h>

#include "api/core.h"
#include "calls/forms.h"
#include "compile/compiled_program.h"
#include "files/program_file.h"

namespace abele {

std::vector<ProgramValue> inputsOf(CompiledModel& model) {
  const ModelAccess::Call call = ModelAccess::enter(model);
  call->compiled("inputsOf()");
  std::vector<std::string> names = calls::tensorNames(call->argumentForm());
  std::vector<ProgramValue> inputs;
  for (const Type& type : call->inputTypes()) {
    const size_t i = inputs.size();
    inputs.push_back({.name = i < names.size() ? std::move(names[i]) : std::to_string(i),
                      .sizes = type.sizes,
                      .type = c10::toString(static_cast<c10::ScalarType>(type.dtype))});
  }
  return inputs;
}

std::vector<std::string> resultNames(CompiledModel& model) {
  const ModelAccess::Call call = ModelAccess::enter(model);
  call->compiled("resultNames()");
  return calls::tensorNames(call->resultForm());
}

bool isTrainingProgram(const std::string& path) {
  const files::ProgramFile file = files::readProgramFile(path);
  return files::ofFile(path, [&] { return compile::decodeProgram(file.program).executable.training; });
}

}  // namespace abele
