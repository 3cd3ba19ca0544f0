// Private to exe/build: messages between the processes that hold the stages of a replica, by both of their segments.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "exe/build/dependencies.h"

namespace abele::exe {

class Messages {
 public:
  /// Of one replica.
  Messages(const Executable& executable, const std::vector<SegmentUses>& uses);
  /// Links that messages go through; they are numbered from 0.
  int64_t links() const { return links_; }
  /// Does the segment send or receive one?
  bool has(size_t segment) const { return received_.contains(static_cast<int32_t>(segment)); }
  /// Leaves out of a message, at both of its ends, the values of which the slot at the receiver is not to be kept.
  /// instructions: those of the segment, empty where nothing is left.
  void keep(size_t segment, const std::function<bool(int32_t)>& is_kept, std::vector<Instruction>& instructions) const;

 private:
  int64_t links_ = 0;
  std::map<int32_t, std::vector<int64_t>> received_;  // by segment: the slots of its values at the receiver
};

}  // namespace abele::exe
