#include "runtime/device/accelerator/off_chip_window.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include "runtime/memory/tensors.h"

namespace abele::runtime {

OffChipWindow::OffChipWindow(const exe::Executable& executable, const WorkerMoves& moves, const Places& places,
                             int32_t space)
    : moves_(moves),
      place_(places.at(space)),
      copies_(*newStream(place_.device())),
      memory_(place_.work([&] { return Region(moves.window_bytes, 1, place_.device(), "the off-chip window"); })),
      slots_(SlotTable::withMovingGroups(place_.slots(), places.offChip())),
      computed_(place_.device().type()),
      arrived_(place_.device().type()) {
  const c10::InferenceMode plain_tensors;
  for (int i = 0; i < 2; ++i) ready_.emplace_back(place_.device().type());
  const SlotTable& home = places.offChip();
  for (const ActionMoves& action : moves.actions)
    actions_.push_back({copiesOf(action.fetches, home, /*to_device=*/true),
                        copiesOf(action.next_fetches, home, /*to_device=*/true),
                        copiesOf(action.stores, home, /*to_device=*/false)});
}

std::vector<OffChipWindow::Copy> OffChipWindow::copiesOf(const std::vector<Move>& moves, const SlotTable& home,
                                                         bool to_device) const {
  std::vector<Copy> copies;
  for (const Move& move : moves)
    for (const ByteRange& range : move.ranges) {
      const Type bytes = contiguousType(DType::kUInt8, {range.end - range.begin});
      at::Tensor here = tensorOver({memory_.frame(0) + move.offset_bytes + range.begin, place_.device()}, bytes);
      at::Tensor there = tensorOver(
          {home.region(move.group)->frame(move.frame) + range.begin, c10::Device(c10::DeviceType::CPU)}, bytes);
      copies.push_back(to_device ? Copy{std::move(here), std::move(there)} : Copy{std::move(there), std::move(here)});
    }
  return copies;
}

void OffChipWindow::enqueue(const std::vector<Copy>& copies) const {
  if (copies.empty()) return;
  const c10::StreamGuard on_copies(copies_);
  for (const Copy& copy : copies) copy.to.copy_(copy.from, /*non_blocking=*/true);
}

void OffChipWindow::follow(const c10::Stream& compute) {
  computed_.record(compute);
  computed_.block(copies_);
}

void OffChipWindow::before(std::size_t action, const c10::Stream& compute) {
  const ActionMoves& moves = moves_.actions[action];
  const Copies& copies = actions_[action];
  for (const Move& move : moves.placed) slots_->moveFrame(move.group, move.frame, memory_.frame(0) + move.offset_bytes);
  if (action == 0) last_store_ = kNone;
  if (action > 0 && moves_.actions[action - 1].places_next) {
    ready_[action % 2].block(compute);
    if (last_store_ + 1 < static_cast<int64_t>(action)) last_store_ = kNone;
  }
  if (moves.awaits_copies || !copies.fetches.empty()) {
    follow(compute);
    enqueue(copies.fetches);
    arrived_.record(copies_);
    arrived_.block(compute);
    last_store_ = kNone;
  }
  if (!moves.places_next) return;
  if (moves.next_is_of_others) follow(compute);
  enqueue(copies.next_fetches);
  ready_[(action + 1) % 2].record(copies_);
}

const c10::Stream& OffChipWindow::after(std::size_t action, const c10::Stream& compute) {
  const ActionMoves& moves = moves_.actions[action];
  if (moves.stores_for_others) last_store_ = static_cast<int64_t>(action);
  // Who waits for this action relies on the ones before it, too.
  const bool is_complete_behind_copies = last_store_ != kNone;
  if (moves.leaves || !moves.stores.empty() || is_complete_behind_copies) follow(compute);
  enqueue(actions_[action].stores);
  return is_complete_behind_copies ? copies_ : compute;
}

}  // namespace abele::runtime
