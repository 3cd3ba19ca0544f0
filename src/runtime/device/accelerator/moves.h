// What a worker's off-chip frames move between the host and its device, action by action. Torch-free. Used by
// off_chip_window.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::runtime {

/// Bytes [begin, end) of a frame.
struct ByteRange {
  int64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// Of waits for the stores of an action: there is nothing to wait for.
constexpr int32_t kNoStores = -1;

/// A frame on the device, at an offset of the worker's window, and the bytes of it that are copied.
struct Move {
  int32_t group = -1, frame = 0;
  int64_t offset_bytes = 0;
  std::vector<ByteRange> ranges = {};  // in order; those of a frame that is only placed are empty
  /// Of fetches: the last action whose stores read the place, or write what is read; those before have come before.
  int32_t behind = kNoStores;
  bool operator==(const Move&) const = default;
};

/// Around one action, in this order: placed, fetches, next_fetches; the action; stores. Fetches follow each other, and
/// so do stores; what else is in order is said here.
struct ActionMoves {
  std::vector<Move> placed;        // frames that come to the device with this action
  std::vector<Move> fetches;       // those that cannot come ahead
  std::vector<Move> next_fetches;  // for the next action, while this one runs
  std::vector<Move> stores;
  /// The last action whose stores may still read the places that this action uses: it waits for them.
  int32_t places_behind = kNoStores;
  bool places_next = false;  // the next action's placed has frames that take theirs while this one runs
  bool next_is_of_others =
      false;  // next_fetches read what other workers made: they wait for what this action waits for
  bool stores_for_others = false;  // other workers need the stores: for them it is complete when these are
  bool leaves = false;             // something has left the device behind it: others may come to its place
  bool operator==(const ActionMoves&) const = default;
};

struct WorkerMoves {
  std::vector<ActionMoves> actions;
  int64_t window_bytes = 0;  // on the device, for all frames that are there at once
};

/// By worker; nothing for those that work in the host's memory themselves (works_at_home, by worker). A step begins and
/// ends with everything in the host's memory. Frames that only one worker uses stay on its device from the first to the
/// last of consecutive actions that use them, and come and go as a whole; those that several workers use are stored
/// behind each action that writes them, byte by byte: another worker may write other bytes of them meanwhile.
std::vector<WorkerMoves> planMoves(const exe::Executable& executable, const std::vector<char>& works_at_home);

}  // namespace abele::runtime
