// Decides whether a device may work in memory that other code allocated. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace abele::memory {

/// The private parts of the process's address space at the time when this was made: no other process sees what is
/// written there, or writes there. Threads: safe.
class PrivateMemory {
 public:
  PrivateMemory();
  /// Whether all these bytes are private memory and, if `writable`, may be written.
  bool holds(const void* begin, int64_t bytes, bool writable) const;

 private:
  struct Range {
    uintptr_t begin, end;
    bool writable;
  };
  std::vector<Range> ranges_;  // in the order of addresses
};

/// The memory that devices of this process work in. A byte belongs to one owner at a time. Released with the object.
/// Threads: owner only; claims of different objects may meet on different threads.
class MemoryClaims {
 public:
  /// owner: identifies a program that never runs two steps at once. goes_first: takes memory away from owners that do
  /// not go first.
  MemoryClaims(const void* owner, bool goes_first) : owner_(owner), goes_first_(goes_first) {}
  ~MemoryClaims();
  MemoryClaims(const MemoryClaims&) = delete;
  MemoryClaims& operator=(const MemoryClaims&) = delete;

  /// Returns false if the memory overlaps with another owner's that cannot be taken away, or with another piece of this
  /// object.
  bool take(const void* begin, int64_t bytes);
  /// Whether the piece that begins here is still this object's. Another owner may have taken it away.
  bool holds(const void* begin) const;
  /// Whether all pieces are. Cheap.
  bool holdsAll();
  void release(const void* begin);
  /// Whether these bytes overlap with memory that this object holds.
  bool overlaps(const void* begin, int64_t bytes) const;

 private:
  struct Taken {
    uintptr_t end;
    uint64_t piece;  // number of the piece, which no other piece of the process ever has
  };
  const void* owner_;
  bool goes_first_;
  std::map<uintptr_t, Taken> taken_;  // by begin
  uint64_t num_lost_ = 0;             // pieces that the process's objects had lost when holdsAll() returned true last
};

}  // namespace abele::memory
