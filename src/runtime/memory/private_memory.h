// Whether a device may work in memory that somebody else allocated. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace abele::runtime {

/// The parts of the address space that are this process's own, as they were when this was made: no other process sees
/// what is written there, nor writes there. Threads: safe.
class PrivateMemory {
 public:
  PrivateMemory();
  /// Are all these bytes such memory, and may they be written where that is asked for?
  bool holds(const void* begin, int64_t bytes, bool writable) const;

 private:
  struct Range {
    uintptr_t begin, end;
    bool writable;
  };
  std::vector<Range> ranges_;  // in order
};

/// What devices of this process work in: memory belongs to one owner at a time. Released with the object.
/// Threads: owner only; claims of different objects may meet on different threads.
class MemoryClaims {
 public:
  /// owner: whoever never runs two steps at once.
  explicit MemoryClaims(const void* owner) : owner_(owner) {}
  ~MemoryClaims();
  MemoryClaims(const MemoryClaims&) = delete;
  MemoryClaims& operator=(const MemoryClaims&) = delete;

  /// False: it overlaps with what another owner holds, or with another piece of this object.
  bool take(const void* begin, int64_t bytes);
  void release(const void* begin);
  /// Do these bytes overlap with what this object holds?
  bool overlaps(const void* begin, int64_t bytes) const;

 private:
  const void* owner_;
  std::map<uintptr_t, uintptr_t> taken_;  // begin -> end
};

}  // namespace abele::runtime
