#include "memory/reused_pages.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <sys/mman.h>

#include "base/error.h"
#include "base/fork.h"
#include "memory/mapped_file.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // since Linux 5.14
#endif

namespace abele::memory {
namespace {

// Address space; memory is taken when it is touched.
constexpr int64_t kChunkBytes = int64_t{256} << 20;

int64_t roundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
char* alignedUp(char* address, int64_t step) {
  return reinterpret_cast<char*>(roundUp(reinterpret_cast<int64_t>(address), step));
}
char* alignedDown(char* address, int64_t step) {
  return address - reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(step);
}

char* mapAnonymous(char* at, int64_t bytes) {
  void* mapped = ::mmap(at, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  ::madvise(mapped, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<char*>(mapped);
}

void unmap(char* begin, char* end) {
  if (begin < end) ::munmap(begin, static_cast<std::size_t>(end - begin));
}

/// A range of addresses that was mapped at once.
struct Chunk {
  std::map<char*, char*> free;  // begin -> end; no two of them are adjacent
  char* touched_end;            // no tensor has had memory past this point

  /// Takes the lowest free bytes, so that memory that was touched before is used first.
  char* take(int64_t bytes) {
    for (auto at = free.begin(); at != free.end(); ++at) {
      const auto [begin, end] = *at;
      if (end - begin < bytes) continue;
      free.erase(at);
      if (begin + bytes < end) free.emplace(begin + bytes, end);
      touched_end = std::max(touched_end, begin + bytes);
      return begin;
    }
    return nullptr;
  }

  void give(char* begin, char* end) {
    auto next = free.lower_bound(begin);
    if (next != free.end() && next->first == end) {
      end = next->second;
      next = free.erase(next);
    }
    if (next != free.begin() && std::prev(next)->second == begin)
      std::prev(next)->second = end;
    else
      free.emplace(begin, end);
  }
};

}  // namespace

struct ReusedPool {
  explicit ReusedPool(bool keeps_pages) : keeps(keeps_pages) {}

  void unmapFree() {
    for (Chunk& chunk : chunks) {
      for (const auto& [begin, end] : chunk.free) unmap(begin, end);
      chunk.free.clear();
    }
  }

  const bool keeps;
  std::mutex mutex;
  bool is_closed = false;
  std::list<Chunk> chunks;
};

namespace {

struct Block {
  int64_t bytes = 0;
  Chunk* chunk = nullptr;  // while the pool is open
  std::shared_ptr<ReusedPool> pool;
};

/// A chunk with room for this many bytes at its end; null if the system has none.
Chunk* mapChunk(ReusedPool& pool, int64_t bytes) {
  const int64_t mapped = std::max(kChunkBytes, roundUp(bytes, ReusedPages::kPage)) + ReusedPages::kPage;
  char* begin = mapAnonymous(nullptr, mapped);
  if (begin == nullptr) return nullptr;
  char* first = alignedUp(begin, ReusedPages::kPage);
  unmap(begin, first);
  return &pool.chunks.emplace_back(Chunk{{{first, begin + mapped}}, first});
}

bool isMapped(char* page) {
  unsigned char is_resident = 0;
  return ::mincore(page, 1, &is_resident) == 0;
}

// Never destroyed, because tensors of other libraries may outlive it.
struct Blocks {
  ProcessMutex mutex;
  std::unordered_map<void*, Block> by_address;
};
Blocks& blocks() {
  static auto* const instance = new Blocks;
  return *instance;
}

void freeBlock(void* begin) { freeReused(begin); }

}  // namespace

bool freeReused(void* begin) {
  Block block;
  {
    const std::lock_guard lock(blocks().mutex);
    const auto found = blocks().by_address.find(begin);
    if (found == blocks().by_address.end()) return false;
    block = std::move(found->second);
    blocks().by_address.erase(found);
  }
  char* first = static_cast<char*>(begin);
  const std::lock_guard lock(block.pool->mutex);
  if (block.pool->is_closed) {
    unmap(first, first + block.bytes);
  } else {
    if (!block.pool->keeps) ::madvise(first, static_cast<std::size_t>(block.bytes), MADV_DONTNEED);
    block.chunk->give(first, first + block.bytes);
  }
  return true;
}

ReusedPages::ReusedPages(bool keeps) : pool_(std::make_shared<ReusedPool>(keeps)) {}

ReusedPages::~ReusedPages() {
  const std::lock_guard lock(pool_->mutex);
  pool_->is_closed = true;
  pool_->unmapFree();
  pool_->chunks.clear();
}

c10::DataPtr ReusedPages::allocate(std::size_t bytes) {
  Block block{roundUp(static_cast<int64_t>(bytes), pageBytes()), nullptr, pool_};
  char* begin = nullptr;
  {
    const std::lock_guard lock(pool_->mutex);
    for (Chunk& chunk : pool_->chunks) {
      block.chunk = &chunk;
      begin = chunk.take(block.bytes);
      if (begin != nullptr) break;
    }
    if (begin == nullptr) block.chunk = mapChunk(*pool_, block.bytes);
    if (block.chunk == nullptr) return {};
    if (begin == nullptr) begin = block.chunk->take(block.bytes);
  }
  const std::lock_guard lock(blocks().mutex);
  blocks().by_address.emplace(begin, std::move(block));
  return {begin, begin, &freeBlock, c10::Device(c10::DeviceType::CPU)};
}

int64_t ReusedPages::moveTo(char* begin, int64_t bytes) {
  const std::lock_guard lock(pool_->mutex);
  int64_t moved = 0;
  for (Chunk& chunk : pool_->chunks)
    for (auto at = chunk.free.begin(); at != chunk.free.end() && moved < bytes;) {
      const auto [from, end] = *at;
      char* first = alignedUp(from, kPage);
      const int64_t there = alignedDown(std::min(end, chunk.touched_end), kPage) - first;
      if (there <= 0) {
        ++at;
        continue;
      }
      const int64_t taken = std::min(there, bytes - moved);
      char* to = begin + moved;
      const bool is_moved = ::mremap(first, static_cast<std::size_t>(taken), static_cast<std::size_t>(taken),
                                     MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
      if (!is_moved) {
        // A system without memory for its own tables may have unmapped the old pages already.
        if (!isMapped(to) && mapAnonymous(to, taken) == nullptr)
          throwDevice(ErrorCode::E0603, {.what = cat(taken, " bytes cannot be mapped"),
                                         .remedy = "use a smaller micro-batch, or more stages or recomputation"});
        return moved;
      }
      moved_[to] = to + taken;
      chunk.free.erase(at);
      if (from < first) chunk.free.emplace(from, first);
      at = chunk.free.upper_bound(first);
      if (first + taken < end) at = chunk.free.emplace(first + taken, end).first;
      moved += taken;
    }
  return moved;
}

void ReusedPages::replace(char* begin, char* end, const std::function<void(char* begin, char* end)>& replaced) {
  for (char* page = begin; page < end;) {
    char* behind = page;  // end of the pages from here that were never written
    while (behind < end && written_.insert(behind).second) behind += kPage;
    if (const int64_t moved = moveTo(page, behind - page); moved > 0) replaced(page, page + moved);
    page = std::max(behind, page + kPage);
  }
}

void ReusedPages::expectWrite(char* begin, char* end, char* first, char* last) {
  if (begin == end) return;
  char* const last_page = alignedDown(last, kPage);  // a page that ends after `last` stays
  replace(std::max(first, alignedDown(begin, kPage)), std::min(alignedUp(end, kPage), last_page),
          [&](char* page, char* moved) {
            if (page < begin) std::memset(page, 0, static_cast<std::size_t>(begin - page));
            if (end < moved) std::memset(end, 0, static_cast<std::size_t>(moved - end));
          });
}

void ReusedPages::fill(char* begin, char* end) {
  begin = alignedUp(begin, kPage);
  end = alignedDown(end, kPage);
  if (begin >= end) return;
  replace(begin, end, [](char* page, char* moved) { std::memset(page, 0, static_cast<std::size_t>(moved - page)); });
  if (fetches_missing_) ::madvise(begin, static_cast<std::size_t>(end - begin), MADV_POPULATE_WRITE);
}

void ReusedPages::adopt(char* begin, char* end) {
  char* const first = std::min(end, alignedUp(begin, kPage));
  char* const last = std::max(first, pool_->keeps ? alignedDown(end, kPage) : first);
  unmap(begin, first);
  unmap(last, end);
  const std::lock_guard lock(pool_->mutex);
  // The system moves pages of one mapping at a time, so each has a chunk of its own.
  for (char* at = first; at < last;) {
    const auto moved = moved_.lower_bound(at);
    char* next = moved == moved_.end() ? last : moved->first == at ? moved->second : moved->first;
    next = std::min(next, last);
    pool_->chunks.push_back({{{at, next}}, next});
    at = next;
  }
  moved_.erase(moved_.lower_bound(first), moved_.lower_bound(last));
  written_.erase(written_.lower_bound(first), written_.lower_bound(last));
}

void ReusedPages::drop() {
  const std::lock_guard lock(pool_->mutex);
  pool_->unmapFree();
}

namespace {
thread_local ReusedPages* pages_to_write = nullptr;
}

IntoReusedPages::IntoReusedPages(ReusedPages& pages) : outer_(std::exchange(pages_to_write, &pages)) {}
IntoReusedPages::~IntoReusedPages() { pages_to_write = outer_; }
ReusedPages* IntoReusedPages::pages() { return pages_to_write; }

}  // namespace abele::memory
