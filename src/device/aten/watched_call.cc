#include "device/aten/watched_call.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

namespace abele::device {
namespace {

class WatchedCall final : public Call {
 public:
  WatchedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction, int32_t index, const SlotTable& slots,
              Watch& watch)
      : call_(std::move(call)), index_(index), watch_(watch), device_(slots.device()) {
    for (const int32_t id : instruction.writes) add(id, slots);
    for (const std::vector<int32_t>& ids : instruction.results)
      for (const int32_t id : ids) add(id, slots);
  }

  void run(CallState& state) override {
    call_->run(state);
    waitForStream();
    for (const auto& [id, slot] : made_) {
      const at::Tensor& tensor = slot.at(state.frame_of_group);
      if (tensor.defined()) watch_.computed(state.action, index_, id, tensor);
    }
  }

 private:
  // A watcher need not know the stream on which a tensor was computed.
  void waitForStream() const {
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
  }
  void add(int32_t id, const SlotTable& slots) {
    if (id >= 0) made_.emplace_back(id, slots.ref(id));
  }

  std::unique_ptr<Call> call_;
  int32_t index_;
  Watch& watch_;
  c10::Device device_;
  std::vector<std::pair<int32_t, SlotRef>> made_;
};

}  // namespace

std::unique_ptr<Call> makeWatchedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction, int32_t index,
                                      const SlotTable& slots, Watch& watch) {
  return std::make_unique<WatchedCall>(std::move(call), instruction, index, slots, watch);
}

}  // namespace abele::device
