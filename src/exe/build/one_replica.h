// Private to exe/build: lookups in the executable of one replica, for replicate.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "exe/build/dependencies.h"

namespace abele::exe {

/// The memory of each external.
class ExternalPlaces {
 public:
  using Memory = std::pair<int32_t, int64_t>;  // group and offset
  /// The start of an external, or of its copy for another memory space.
  struct Place {
    int32_t external = -1, slot = -1;
  };

  explicit ExternalPlaces(const Executable& executable);
  /// Requires: an external starts there.
  const Place& at(int32_t group, int64_t offset_bytes) const;
  const std::map<Memory, Place>& all() const { return places_; }

 private:
  std::map<Memory, Place> places_;
};

/// Messages between the processes that hold the stages of a replica, by the segments of both ends.
class Messages {
 public:
  /// executable: of one replica.
  Messages(const Executable& executable, const std::vector<SegmentUses>& uses);
  /// The number of links that messages use; links are numbered from 0.
  int64_t links() const { return links_; }
  /// Whether the segment sends or receives a message.
  bool has(size_t segment) const { return received_.contains(static_cast<int32_t>(segment)); }
  /// Removes values from a message at both of its ends, except those for whose slot at the receiver is_kept is true.
  /// instructions: those of the segment; empty afterwards if no value is left.
  void keep(size_t segment, const std::function<bool(int32_t)>& is_kept, std::vector<Instruction>& instructions) const;

 private:
  int64_t links_ = 0;
  std::map<int32_t, std::vector<int64_t>> received_;  // by segment: its values' slots at the receiver
};

}  // namespace abele::exe
