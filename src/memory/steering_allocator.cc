#include "memory/steering_allocator.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "base/fork.h"
#include "memory/paged_memory.h"
#include "memory/reused_pages.h"

namespace abele::memory {
namespace {

constexpr std::size_t kSmallest = 256;
constexpr int kClassesPerDoubling = 4;
constexpr int kNumClasses = 64 * kClassesPerDoubling;
constexpr int kServedClasses = 2 * kClassesPerDoubling;  // a block serves tensors from a fourth of its size on

std::atomic<int64_t> misses{0}, miss_bytes{0};
c10::Allocator* previous = nullptr;  // torch's own, based on malloc

struct Cache {
  std::array<std::vector<void*>, kNumClasses> free_blocks;
};

struct ThreadState {
  bool active = false;
  Cache* cache = nullptr;
  const Steer* steer = nullptr;
  const Steer* steer_end = nullptr;
  int32_t ordinal = 0;
  std::vector<Allocation>* trace = nullptr;
  PagedMemory* paged = nullptr;
  ReusedPages* pages = nullptr;
};
// Trivially destructible, so that blocks that die late in a thread's life can still read it.
thread_local ThreadState state;

void drop(Cache& cache) {
  for (auto& blocks : cache.free_blocks) {
    for (void* block : blocks) previous->raw_deallocate(block);
    blocks.clear();
  }
}

struct CacheOwner {
  Cache cache;
  CacheOwner() { state.cache = &cache; }
  ~CacheOwner() {
    state.cache = nullptr;
    drop(cache);
  }
};

struct ArenaRange {
  const char* begin;
  const char* end;
};
ProcessMutex arenas_mutex;
std::vector<ArenaRange> arenas;

bool isInArena(const void* address) {
  const std::lock_guard lock(arenas_mutex);
  return std::any_of(arenas.begin(), arenas.end(),
                     [&](const ArenaRange& arena) { return address >= arena.begin && address < arena.end; });
}

// Classes: four per power of two, at least 64 bytes apart, so that malloc's own rounding never reaches the next one.
struct SizeClass {
  int index;
  std::size_t bytes;
};
SizeClass roundUp(std::size_t bytes) {
  if (bytes <= kSmallest) return {0, kSmallest};
  const int shift = std::bit_width(bytes - 1) - 3;
  const std::size_t steps = ((bytes - 1) >> shift) + 1;  // 5..8
  return {(shift - 6) * kClassesPerDoubling + static_cast<int>(steps) - 4, steps << shift};
}
int roundDown(std::size_t bytes) {
  const int shift = std::bit_width(bytes) - 3;
  return (shift - 6) * kClassesPerDoubling + static_cast<int>(bytes >> shift) - 4;
}

// Frees memory of allocate() or of the previous allocator, on any thread. Only a step puts blocks into the cache,
// because only a step takes blocks out. Eager's oneDNN frees its workspaces here too, and would otherwise fill the
// caller's cache forever.
void release(void* address) {
  const bool keeps = address != nullptr && state.active && state.cache != nullptr;
  const std::size_t bytes = keeps ? malloc_usable_size(address) : 0;
  if (bytes >= kSmallest)
    state.cache->free_blocks[roundDown(bytes)].push_back(address);
  else
    previous->raw_deallocate(address);
}

// The same for raw_deallocate(), which does not know the deleter of an address.
void releaseRaw(void* address) {
  if (!isInArena(address) && !freePaged(address) && !freeReused(address)) release(address);
}

void keep(void* /*address*/) {}

// The smallest free block that serves this class; null if every free one is too small or too large.
void* takeFree(Cache& cache, int size_class) {
  const int end = std::min(size_class + kServedClasses + 1, kNumClasses);
  for (int index = size_class; index < end; ++index) {
    auto& blocks = cache.free_blocks[index];
    if (blocks.empty()) continue;
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  return nullptr;
}

c10::DataPtr fromCache(std::size_t bytes) {
  const SizeClass size_class = roundUp(bytes);
  void* block = takeFree(*state.cache, size_class.index);
  if (block == nullptr) {
    misses.fetch_add(1, std::memory_order_relaxed);
    miss_bytes.fetch_add(static_cast<int64_t>(size_class.bytes), std::memory_order_relaxed);
    block = previous->raw_allocate(size_class.bytes);
  }
  return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
}

class SteeringAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (state.paged != nullptr && bytes >= PagedMemory::kSmallest) return state.paged->allocate(bytes);
    if (!state.active || bytes == 0) {
      const bool reuses = state.pages != nullptr && bytes >= ReusedPages::kSmallest;
      c10::DataPtr memory = reuses ? state.pages->allocate(bytes) : c10::DataPtr();
      return memory ? std::move(memory) : previous->allocate(bytes);
    }
    const int32_t ordinal = state.ordinal++;
    if (state.steer != state.steer_end && state.steer->ordinal == ordinal) {
      const Steer& steer = *state.steer++;
      if (steer.bytes == bytes) return {steer.address, steer.address, &keep, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DataPtr memory = fromCache(bytes);
    if (state.trace != nullptr) state.trace->push_back({memory.get(), bytes});
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &releaseRaw; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// If the program has a CPU allocator of its own, that one stays: results are then copied into their slots, and nothing
// is paged.
bool install() {
  static const bool installed = [] {
    previous = c10::GetCPUAllocator();
    if (previous != c10::GetDefaultCPUAllocator()) return false;
    static SteeringAllocator allocator;
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
    return true;
  }();
  return installed;
}

}  // namespace

int64_t cpuAllocatorMisses() { return misses.load(std::memory_order_relaxed); }
int64_t cpuAllocatorMissBytes() { return miss_bytes.load(std::memory_order_relaxed); }

void addArena(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(arenas_mutex);
  arenas.push_back({static_cast<const char*>(begin), static_cast<const char*>(begin) + bytes});
}

void removeArena(const void* begin) {
  const std::lock_guard lock(arenas_mutex);
  std::erase_if(arenas, [&](const ArenaRange& arena) { return arena.begin == begin; });
  dropCache();
}

void dropCache() {
  if (state.cache != nullptr) drop(*state.cache);
}

CacheScope::CacheScope() : was_active_(state.active) {
  thread_local CacheOwner owner;
  state.active = install() && state.cache == &owner.cache;  // false while the thread ends
}
CacheScope::~CacheScope() { state.active = was_active_; }

SteerScope::SteerScope(const std::vector<Steer>& steers) {
  state.steer = steers.data();
  state.steer_end = steers.data() + steers.size();
  state.ordinal = 0;
}
SteerScope::~SteerScope() { state.steer = state.steer_end = nullptr; }

PagedScope::PagedScope(PagedMemory& memory) : outer_(state.paged) {
  install();
  state.paged = &memory;
}
PagedScope::~PagedScope() { state.paged = outer_; }

FromReusedPages::FromReusedPages(ReusedPages& pages) : outer_(state.pages) {
  install();
  state.pages = &pages;
}
FromReusedPages::~FromReusedPages() { state.pages = outer_; }

TraceScope::TraceScope(std::vector<Allocation>& trace) {
  state.trace = &trace;
  state.ordinal = 0;
}
TraceScope::~TraceScope() { state.trace = nullptr; }

}  // namespace abele::memory
