// Private to exe/build: messages between the processes that hold the stages of a replica, by the segments of both ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "exe/build/dependencies.h"

namespace abele::exe {

class Messages {
 public:
  /// executable: of one replica.
  Messages(const Executable& executable, const std::vector<SegmentUses>& uses);
  /// The number of links that messages use; links are numbered from 0.
  int64_t links() const { return links_; }
  /// Whether the segment sends or receives a message.
  bool has(size_t segment) const { return received_.contains(static_cast<int32_t>(segment)); }
  /// Removes values from a message, at both of its ends, unless is_kept is true for their slot at the receiver.
  /// instructions: those of the segment; empty afterwards if no value is left.
  void keep(size_t segment, const std::function<bool(int32_t)>& is_kept, std::vector<Instruction>& instructions) const;

 private:
  int64_t links_ = 0;
  std::map<int32_t, std::vector<int64_t>> received_;  // by segment: its values' slots at the receiver
};

}  // namespace abele::exe
