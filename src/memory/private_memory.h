// Decides whether a device may work in memory that other code allocated. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace abele::memory {

/// The private parts of the process's address space when this object was made: no other process reads or writes them.
/// Threads: safe.
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

/// Claims on the memory in which devices of this process work. A byte belongs to one owner at a time. The destructor
/// releases the claims. Threads: owner only; different objects may claim on different threads.
class MemoryClaims {
 public:
  /// owner: identifies a program that never runs two steps at once. goes_first: may take memory from owners without
  /// this flag.
  MemoryClaims(const void* owner, bool goes_first) : owner_(owner), goes_first_(goes_first) {}
  ~MemoryClaims();
  MemoryClaims(const MemoryClaims&) = delete;
  MemoryClaims& operator=(const MemoryClaims&) = delete;

  /// Claims this memory. Returns false if it overlaps with another owner's that cannot be taken, or with another piece
  /// of this object.
  bool take(const void* begin, int64_t bytes);
  /// Whether this object still has the piece that begins here. Another owner may have taken it.
  bool holds(const void* begin) const;
  /// Whether this object still has all its pieces. Cheap.
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
  uint64_t num_lost_ = 0;             // number of lost pieces in the process when holdsAll() last returned true
};

}  // namespace abele::memory
