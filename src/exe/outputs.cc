#include "exe/outputs.h"

#include <algorithm>

#include "base/instructions.h"

namespace abele::exe {

std::vector<int32_t> processesOfOutputs(const Executable& executable) {
  std::vector<int32_t> processes(executable.output_slots.size(), -1);
  for (const WorkerProgram& worker : executable.workers)
    for (const Action& action : worker.actions)
      for (const Instruction& i : executable.segments[static_cast<std::size_t>(action.segment)].instructions) {
        if (ownOp(i.op) != OwnOp::kEmit) continue;
        const auto output = std::ranges::find(executable.output_slots, static_cast<int32_t>(i.args[0].i));
        processes[static_cast<std::size_t>(output - executable.output_slots.begin())] = worker.process;
      }
  return processes;
}

}  // namespace abele::exe
