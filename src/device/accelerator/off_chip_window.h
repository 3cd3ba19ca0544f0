// Off-chip memory of a worker on an accelerator. It is in the host's memory; frames are copied to the device while
// actions use them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device/accelerator/moves.h"
#include "device/accelerator/places.h"
#include "device/aten/arena.h"
#include "exe/executable.h"

namespace abele::device {

/// Device memory for the frames that the worker's actions use. One stream copies frames there ahead of the actions, and
/// another copies them back afterwards. Requires: all that it refers to outlives it. Threads: the worker's; bytes()
/// any.
class OffChipWindow {
 public:
  /// Throws E0603.
  OffChipWindow(const WorkerMoves& moves, const Places& places, int32_t space);

  /// The slots for the worker's calls.
  SlotTable& slots() const { return *slots_; }
  int64_t bytes() const { return memory_.bytes(); }
  const c10::Stream& incoming() const { return incoming_; }
  const c10::Stream& outgoing() const { return outgoing_; }

  /// Makes the frames of this action available to work that is enqueued on `compute` next, and starts to move frames of
  /// the next action.
  /// Requires: compute waits for all that the action waits for.
  void before(std::size_t action, const c10::Stream& compute);
  /// Called once the action is enqueued. Returns the stream for whose work other workers must wait.
  const c10::Stream& after(std::size_t action, const c10::Stream& compute);

 private:
  struct Copy {
    at::Tensor to, from;
    int32_t behind = kNoStores;  // as in Move
  };
  /// The copies around an action, as in ActionMoves.
  struct Copies {
    std::vector<Copy> fetches, next_fetches, stores;
  };
  std::vector<Copy> copiesOf(const std::vector<Move>& moves, const SlotTable& home, bool to_device) const;
  void fetch(const std::vector<Copy>& copies);
  /// Lets the copies wait for all work enqueued on `compute`.
  void follow(const c10::Stream& compute, const c10::Stream& copies);

  const WorkerMoves& moves_;
  const Place& place_;
  c10::Stream incoming_, outgoing_;
  Region memory_;
  std::unique_ptr<SlotTable> slots_;
  std::vector<Copies> actions_;
  c10::Event computed_, arrived_;
  std::vector<c10::Event> ready_;   // for the frames of even and of odd actions
  std::vector<c10::Event> stored_;  // by action
  std::vector<char> is_awaited_;    // by action: whether anything waits for its stores
  // Actions of this step. First, the actions whose stores incoming_ and compute already wait for. Last, the action with
  // the last stores that other workers need, if compute does not wait for them.
  int32_t followed_by_fetches_ = kNoStores, followed_by_compute_ = kNoStores, last_store_ = kNoStores;
};

}  // namespace abele::device
