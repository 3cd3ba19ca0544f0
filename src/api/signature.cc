// The arguments and results of a compiled program.
#include "abele/signature.h"

#include <c10/core/ScalarType.h>

#include "api/core.h"
#include "compile/compiled_program.h"
#include "model/forms.h"
#include "model/program_file.h"

namespace abele {

std::vector<ProgramValue> inputsOf(CompiledModel& model) {
  const ModelAccess::Call call = ModelAccess::enter(model);
  call->compiled("inputsOf()");
  std::vector<std::string> names = host::tensorNames(call->argumentForm());
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
  return host::tensorNames(call->resultForm());
}

bool isTrainingProgram(const std::string& path) {
  const host::ProgramFile file = host::readProgramFile(path);
  return host::ofFile(path, [&] { return host::decodeProgram(file.program).executable.training; });
}

}  // namespace abele
