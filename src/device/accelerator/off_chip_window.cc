#include "device/accelerator/off_chip_window.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include "memory/tensors.h"

namespace abele::device {

OffChipWindow::OffChipWindow(const WorkerMoves& moves, const Places& places, int32_t space)
    : moves_(moves),
      place_(places.at(space)),
      incoming_(*newStream(place_.device())),
      outgoing_(*newStream(place_.device())),
      memory_(place_.work([&] { return Region(moves.window_bytes, 1, place_.device(), "the off-chip window"); })),
      slots_(SlotTable::withMovingGroups(place_.slots(), places.offChip())),
      computed_(place_.device().type()),
      arrived_(place_.device().type()),
      is_awaited_(moves.actions.size(), false) {
  const c10::InferenceMode plain_tensors;
  for (int i = 0; i < 2; ++i) ready_.emplace_back(place_.device().type());
  const SlotTable& home = places.offChip();
  for (const ActionMoves& action : moves.actions)
    actions_.push_back({copiesOf(action.fetches, home, /*to_device=*/true),
                        copiesOf(action.next_fetches, home, /*to_device=*/true),
                        copiesOf(action.stores, home, /*to_device=*/false)});
  const auto await = [&](int32_t action) {
    if (action != kNoStores) is_awaited_[static_cast<std::size_t>(action)] = true;
  };
  for (const ActionMoves& action : moves.actions) {
    stored_.emplace_back(place_.device().type());
    await(action.places_behind);
    for (const std::vector<Move>* const fetches : {&action.fetches, &action.next_fetches})
      for (const Move& move : *fetches) await(move.behind);
  }
}

std::vector<OffChipWindow::Copy> OffChipWindow::copiesOf(const std::vector<Move>& moves, const SlotTable& home,
                                                         bool to_device) const {
  std::vector<Copy> copies;
  for (const Move& move : moves)
    for (const ByteRange& range : move.ranges) {
      const Type bytes = contiguousType(DType::kUInt8, {range.end - range.begin});
      at::Tensor here =
          memory::tensorOver({memory_.frame(0) + move.offset_bytes + range.begin, place_.device()}, bytes);
      at::Tensor there = memory::tensorOver(
          {home.region(move.group)->frame(move.frame) + range.begin, c10::Device(c10::DeviceType::CPU)}, bytes);
      copies.push_back(to_device ? Copy{std::move(here), std::move(there), move.behind}
                                 : Copy{std::move(there), std::move(here)});
    }
  return copies;
}

void OffChipWindow::fetch(const std::vector<Copy>& copies) {
  const c10::StreamGuard on_copies(incoming_);
  for (const Copy& copy : copies) {
    if (copy.behind > followed_by_fetches_) {
      stored_[static_cast<std::size_t>(copy.behind)].block(incoming_);
      followed_by_fetches_ = copy.behind;
    }
    copy.to.copy_(copy.from, /*non_blocking=*/true);
  }
}

void OffChipWindow::follow(const c10::Stream& compute, const c10::Stream& copies) {
  computed_.record(compute);
  computed_.block(copies);
}

void OffChipWindow::before(std::size_t action, const c10::Stream& compute) {
  const ActionMoves& moves = moves_.actions[action];
  const Copies& copies = actions_[action];
  for (const Move& move : moves.placed) slots_->moveFrame(move.group, move.frame, memory_.frame(0) + move.offset_bytes);
  if (action == 0) followed_by_fetches_ = followed_by_compute_ = last_store_ = kNoStores;
  if (action > 0 && moves_.actions[action - 1].places_next) ready_[action % 2].block(compute);
  if (!copies.fetches.empty()) {
    follow(compute, incoming_);
    fetch(copies.fetches);
    arrived_.record(incoming_);
    arrived_.block(compute);
  }
  if (moves.places_behind > followed_by_compute_) {
    stored_[static_cast<std::size_t>(moves.places_behind)].block(compute);
    followed_by_compute_ = moves.places_behind;
  }
  if (last_store_ <= followed_by_compute_) last_store_ = kNoStores;
  if (!moves.places_next) return;
  if (moves.next_is_of_others) follow(compute, incoming_);
  fetch(copies.next_fetches);
  ready_[(action + 1) % 2].record(incoming_);
}

const c10::Stream& OffChipWindow::after(std::size_t action, const c10::Stream& compute) {
  const ActionMoves& moves = moves_.actions[action];
  const Copies& copies = actions_[action];
  if (moves.stores_for_others) last_store_ = static_cast<int32_t>(action);
  // A worker that waits for this action relies on the earlier ones too, so their stores must be over.
  const bool is_complete_behind_copies = last_store_ != kNoStores;
  if (moves.leaves) follow(compute, incoming_);
  if (!copies.stores.empty() || is_complete_behind_copies) follow(compute, outgoing_);
  {
    const c10::StreamGuard on_copies(outgoing_);
    for (const Copy& copy : copies.stores) copy.to.copy_(copy.from, /*non_blocking=*/true);
  }
  if (is_awaited_[action]) stored_[action].record(outgoing_);
  return is_complete_behind_copies ? outgoing_ : compute;
}

}  // namespace abele::device
