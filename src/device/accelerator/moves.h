// Plans how a worker's off-chip frames move between the host and its device, action by action. Torch-free. Used by
// off_chip_window.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::device {

/// Bytes [begin, end) of a frame.
struct ByteRange {
  int64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// In place of an action: there are no stores to wait for.
constexpr int32_t kNoStores = -1;

/// A frame on the device, at an offset of the worker's window, and its bytes that are copied.
struct Move {
  int32_t group = -1, frame = 0;
  int64_t offset_bytes = 0;
  std::vector<ByteRange> ranges = {};  // in order; empty for a frame that is only placed
  /// For a fetch: the last action whose stores must finish first, because they read this place or write the fetched
  /// bytes. All earlier stores have finished by then.
  int32_t behind = kNoStores;
  bool operator==(const Move&) const = default;
};

/// The moves around one action, in this order: placed, fetches, next_fetches; the action; stores. All fetches run in
/// order, and so do all stores. The other fields are the other dependencies.
struct ActionMoves {
  std::vector<Move> placed;        // frames that come to the device with this action
  std::vector<Move> fetches;       // fetches that cannot run during the previous action
  std::vector<Move> next_fetches;  // fetches for the next action, while this one runs
  std::vector<Move> stores;
  /// The action waits for the stores of this action and of all before it, because they may still read the places that
  /// it uses.
  int32_t places_behind = kNoStores;
  bool places_next = false;  // frames of the next action's `placed` get their places while this one runs
  bool next_is_of_others =
      false;  // next_fetches read memory that other workers wrote, so they wait for all that this action waits for
  bool stores_for_others = false;  // other workers need the stores, so the action is complete for them after these
  bool leaves = false;             // a frame leaves the device after it, so others may take its place
  bool operator==(const ActionMoves&) const = default;
};

struct WorkerMoves {
  std::vector<ActionMoves> actions;
  int64_t window_bytes = 0;  // on the device; large enough for all frames that are there at the same time
};

/// The moves of each worker. Workers that use the host's memory directly (works_at_home, by worker) have no moves. At
/// the start and the end of a step, everything is in the host's memory. A frame that a single worker uses stays on its
/// device during consecutive actions that use it, and comes and goes as a whole. A frame that several workers use is
/// stored after each action that writes it, and only the written bytes: another worker may write other bytes meanwhile.
std::vector<WorkerMoves> planMoves(const exe::Executable& executable, const std::vector<char>& works_at_home);

}  // namespace abele::device
