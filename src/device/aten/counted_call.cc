#include "device/aten/counted_call.h"

#include <ATen/core/Tensor.h>

#include "base/instructions.h"
#include "exe/instruction_slots.h"

namespace abele::device {
std::unique_ptr<Call> makeCountedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                      const SlotTable& slots, double edge, GradientCount& count,
                                      const at::Tensor& large) {
  if (hasTrait(instruction.op, kMovesBits) || instruction.op.starts_with("aten::empty")) return call;
  std::vector<SlotRef> halves;
  exe::forEachWritten(instruction, [&](int32_t id) {
    if (id >= 0 && slots.typeOf(id).dtype == DType::kFloat16) halves.push_back(slots.ref(id));
  });
  if (halves.empty()) return call;
  return callOf([call = std::move(call), halves = std::move(halves), edge = static_cast<float>(edge), &count,
                 large](CallState& state) {
    call->run(state);
    for (const SlotRef& slot : halves) {
      const at::Tensor& tensor = slot.at(state.frame_of_group);
      if (!tensor.defined()) continue;
      count.all += tensor.numel();
      const at::Tensor found = tensor.to(at::kFloat).abs().le(edge).logical_not().sum();
      if (large.defined())
        large.add_(found);
      else
        count.large += found.item<int64_t>();
    }
  });
}

}  // namespace abele::device
