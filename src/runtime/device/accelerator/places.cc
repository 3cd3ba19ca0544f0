#include "runtime/device/accelerator/places.h"

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/instructions.h"
#include "runtime/device/aten/own_call.h"

namespace abele::runtime {

std::optional<c10::Stream> newStream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

Place::Place(const exe::Executable& executable, int32_t space, c10::Device device)
    : device_(device), copies_(newStream(device)), slots_(work([&] {
        return std::make_unique<SlotTable>(executable, OffChipStorage{}, /*stage_process=*/0, device, space);
      })) {}

void Place::waitForCaller(const at::Tensor& tensor) const {
  if (isHost() || tensor.is_cpu()) return;
  c10::Event event(device_.type());
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(tensor.device()));
  event.block(*copies_);
}

Places::Places(const exe::Executable& executable, const std::vector<c10::Device>& devices) : executable_(executable) {
  int32_t last = 0;
  for (const exe::WorkerProgram& worker : executable.workers) last = std::max({last, worker.space, worker.from});
  for (int32_t space = 0; space <= last; ++space)
    places_.emplace_back(executable, space, devices[static_cast<std::size_t>(space) % devices.size()]);
  placeNumbers();
  for (const Place& place : places_)
    for (const Place& other : places_)
      if (&place != &other) place.slots().adopt(other.slots());
}

void Places::placeNumbers() {
  for (const exe::Segment& segment : executable_.segments)
    for (const exe::Instruction& instruction : segment.instructions) {
      if (!isOwn(instruction.op)) continue;
      for (const int32_t slot : slotsReadByHost(instruction)) {
        if (slot < 0) continue;
        SlotTable& slots = ofSlot(slot).slots();
        if (slots.tensor(slot, 0).is_cpu()) continue;
        const c10::InferenceMode no_autograd;
        for (int64_t frame = 0; frame < slots.framesOf(executable_.slots[slot].group); ++frame)
          slots.bindOutput(slot, frame, at::zeros(executable_.slots[slot].type.sizes, at::kFloat));
      }
    }
}

}  // namespace abele::runtime
