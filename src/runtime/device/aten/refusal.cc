#include "runtime/device/aten/refusal.h"

#include "base/error.h"

namespace abele::runtime {

void refuseCall(const exe::Executable& executable, const exe::Instruction& instruction, const c10::Error& error) {
  const std::string line = instruction.source < 0 ? "" : cat(executable.sources[instruction.source], ", ");
  throwUser(ErrorCode::E0601, {.what = error.what_without_backtrace(),
                               .at = cat(line, instruction.op),
                               .remedy = "check the values that this operation is given"});
}

}  // namespace abele::runtime
