#include "device/aten/watched_call.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

#include "exe/instruction_slots.h"

namespace abele::device {
std::unique_ptr<Call> makeWatchedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction, int32_t index,
                                      const SlotTable& slots, Watch& watch) {
  std::vector<std::pair<int32_t, SlotRef>> made;
  exe::forEachWritten(instruction, [&](int32_t id) {
    if (id >= 0) made.emplace_back(id, slots.ref(id));
  });
  return callOf(
      [call = std::move(call), made = std::move(made), index, device = slots.device(), &watch](CallState& state) {
        call->run(state);
        // A watcher need not know the stream on which a tensor was computed.
        if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
        for (const auto& [id, slot] : made) {
          const at::Tensor& tensor = slot.at(state.frame_of_group);
          if (tensor.defined()) watch.computed(state.action, index, id, tensor);
        }
      });
}

}  // namespace abele::device
