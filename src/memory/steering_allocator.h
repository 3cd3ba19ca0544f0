// Tensor memory of worker threads: planned addresses for results, and a per-thread cache for all other tensors.
// Torch-free on purpose, because the calls around an operator include it. Next: device/aten/operator_call.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace abele::memory {

/// The number of allocations on worker threads, since the process began, that the thread's cache could not serve. After
/// the first steps none are added. Threads: safe.
int64_t cpuAllocatorMisses();
/// The bytes of these allocations. Threads keep this memory, so the sum is the memory of kernels in addition to the
/// arenas.
int64_t cpuAllocatorMissBytes();

/// Allocation number `ordinal` of an operator call gets `address` if its size is exactly `bytes`.
struct Steer {
  int32_t ordinal = 0;
  std::size_t bytes = 0;
  void* address = nullptr;
};

/// Declares memory that steered addresses may be in; the allocator never frees it. Threads: safe.
void addArena(const void* begin, std::size_t bytes);
void removeArena(const void* begin);

/// One allocation that an operator call made.
struct Allocation {
  void* address = nullptr;
  std::size_t bytes = 0;
};

/// Frees the blocks that this thread's cache keeps.
void dropCache();

/// While alive, tensors that this thread makes come from its cache; nothing changes for other threads. The first use in
/// a process replaces torch's allocator by ours.
class CacheScope {
 public:
  CacheScope();
  ~CacheScope();
  CacheScope(const CacheScope&) = delete;
  CacheScope& operator=(const CacheScope&) = delete;

 private:
  bool was_active_;
};

/// While alive, inside a CacheScope, counts allocations from 0 and gives the steered ones their addresses.
/// Requires: steers sorted by ordinal, alive as long as the scope.
class SteerScope {
 public:
  explicit SteerScope(const std::vector<Steer>& steers);
  ~SteerScope();
  SteerScope(const SteerScope&) = delete;
  SteerScope& operator=(const SteerScope&) = delete;
};

class PagedMemory;

/// While alive, large tensors that this thread makes come from `memory`, which must live as long as the scope.
class PagedScope {
 public:
  explicit PagedScope(PagedMemory& memory);
  ~PagedScope();
  PagedScope(const PagedScope&) = delete;
  PagedScope& operator=(const PagedScope&) = delete;

 private:
  PagedMemory* outer_;
};

/// While alive, inside a CacheScope, records the allocations.
class TraceScope {
 public:
  explicit TraceScope(std::vector<Allocation>& trace);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
};

}  // namespace abele::memory
