#include "runtime/device/aten/refusal.h"

#include "base/error.h"

namespace abele::runtime {

void refuseCall(const exe::Executable& executable, const exe::Instruction& instruction, int64_t micro_batch,
                const c10::Error& error) {
  const std::string line = instruction.source < 0 ? "" : cat(executable.sources[instruction.source], ", ");
  const bool is_one_of_several = executable.lanes > 1 && instruction.joins == 0;
  const std::string whose = is_one_of_several ? cat(", micro-batch ", micro_batch) : "";
  throwUser(ErrorCode::E0601, {.what = error.what_without_backtrace(),
                               .at = cat(line, instruction.op, whose),
                               .remedy = "check the values that this operation is given"});
}

}  // namespace abele::runtime
