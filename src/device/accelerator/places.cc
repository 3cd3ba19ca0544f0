#include "device/accelerator/places.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/instructions.h"
#include "base/log.h"
#include "device/aten/own_call.h"

namespace abele::device {

std::optional<c10::Stream> newStream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

namespace {

/// Null if the device has no pinned memory; the host then takes part in its copies.
c10::Allocator* pinnedMemory(const std::vector<c10::Device>& devices) {
  const c10::Device device = *std::ranges::find_if_not(devices, &c10::Device::is_cpu);
  try {
    return at::globalContext().getAcceleratorHooksInterface(device.type()).getPinnedMemoryAllocator();
  } catch (const c10::Error& error) {
    log::info(device.str(), " has no pinned memory: ", error.what_without_backtrace());
    return nullptr;
  }
}

}  // namespace

Place::Place(const exe::Executable& executable, int64_t stage_process, int32_t space, c10::Device device,
             c10::Allocator* pinned)
    : device_(device), copies_(newStream(device)), slots_(work([&] {
        return std::make_unique<SlotTable>(executable, OffChipStorage{}, stage_process, device, space, pinned);
      })) {}

void Place::waitForCaller(const at::Tensor& tensor) const {
  if (isHost() || tensor.is_cpu()) return;
  c10::Event event(device_.type());
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(tensor.device()));
  event.block(*copies_);
}

void Place::bindOutput(int32_t slot, int64_t frame, const at::Tensor& tensor) const {
  slots_->bindOutput(slot, frame, tensor);
  for (SlotTable* const table : of_workers_) table->bindOutput(slot, frame, tensor);
}

Places::Places(const exe::Executable& executable, int64_t stage_process, const std::vector<c10::Device>& devices,
               const OffChipStorage& off_chip)
    : executable_(executable), stage_process_(stage_process) {
  c10::Allocator* const pinned = pinnedMemory(devices);
  int32_t last = 0;
  for (const exe::WorkerProgram& worker : executable.workers) last = std::max({last, worker.space, worker.from});
  for (int32_t space = 0; space <= last; ++space)
    places_.emplace_back(executable, stage_process, space, devices[static_cast<std::size_t>(space) % devices.size()],
                         pinned);
  off_chip_ = std::make_unique<SlotTable>(executable, off_chip, stage_process, c10::Device(c10::DeviceType::CPU),
                                          SlotTable::kOffChip, pinned);
  placeNumbers();
  for (const Place& place : places_) {
    place.slots().adopt(*off_chip_);
    for (const Place& other : places_)
      if (&place != &other) place.slots().adopt(other.slots());
  }
}

void Places::placeNumbers() {
  for (const exe::Segment& segment : executable_.segments)
    for (const exe::Instruction& instruction : segment.instructions) {
      if (!isOwn(instruction.op)) continue;
      for (const int32_t slot : slotsReadByHost(instruction)) {
        if (slot < 0 || !isHere(slot)) continue;
        const bool is_off_chip = executable_.groups[executable_.slots[slot].group].off_chip;
        SlotTable& slots = is_off_chip ? *off_chip_ : ofSlot(slot).slots();
        if (ofSlot(slot).isHost() || (!is_off_chip && slots.tensor(slot, 0).is_cpu())) continue;
        const c10::InferenceMode no_autograd;
        for (int64_t frame = 0; frame < slots.framesOf(executable_.slots[slot].group); ++frame)
          slots.bindOutput(slot, frame, at::zeros(executable_.slots[slot].type.sizes, at::kFloat));
      }
    }
}

}  // namespace abele::device
