#include "memory/private_memory.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/fork.h"

namespace abele::memory {
namespace {

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

bool overlapsIn(const std::map<uintptr_t, uintptr_t>& ranges, uintptr_t begin, uintptr_t end) {
  const auto behind = ranges.lower_bound(end);
  return behind != ranges.begin() && std::prev(behind)->second > begin;
}

// The memory that all objects hold. Never destroyed, because models of static lifetime may outlive it.
struct Claimed {
  struct Piece {
    uintptr_t end;
    const void* owner;
    int count;  // number of objects of this owner
  };
  ProcessMutex mu;
  std::map<uintptr_t, Piece> pieces;  // by begin; they do not overlap
};
Claimed& claimed() {
  static auto* const instance = new Claimed;
  return *instance;
}

}  // namespace

PrivateMemory::PrivateMemory() {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  if (!maps) return;  // without a map no memory is known to be ours
  char line[512];
  bool at_start = true;  // start of a line; long lines come in parts
  while (std::fgets(line, sizeof line, maps.get())) {
    unsigned long begin = 0, end = 0;
    char permissions[5] = {};
    if (at_start && std::sscanf(line, "%lx-%lx %4s", &begin, &end, permissions) == 3 && permissions[0] == 'r' &&
        permissions[3] == 'p')
      ranges_.push_back({begin, end, permissions[1] == 'w'});
    const std::string_view part(line);
    at_start = part.ends_with('\n');
  }
}

bool PrivateMemory::holds(const void* begin, int64_t bytes, bool writable) const {
  uintptr_t at = address(begin);
  const uintptr_t end = at + static_cast<uintptr_t>(bytes);
  auto range =
      std::upper_bound(ranges_.begin(), ranges_.end(), at, [](uintptr_t a, const Range& r) { return a < r.end; });
  for (; at < end; ++range) {
    if (range == ranges_.end() || range->begin > at || (writable && !range->writable)) return false;
    at = range->end;
  }
  return true;
}

MemoryClaims::~MemoryClaims() {
  while (!taken_.empty()) release(reinterpret_cast<const void*>(taken_.begin()->first));
}

bool MemoryClaims::take(const void* begin, int64_t bytes) {
  const uintptr_t from = address(begin), to = from + static_cast<uintptr_t>(bytes);
  if (overlapsIn(taken_, from, to)) return false;
  Claimed& all = claimed();
  const std::lock_guard lock(all.mu);
  const auto same = all.pieces.find(from);
  if (same != all.pieces.end() && same->second.end == to && same->second.owner == owner_) {
    ++same->second.count;
  } else {
    const auto behind = all.pieces.lower_bound(to);
    if (behind != all.pieces.begin() && std::prev(behind)->second.end > from) return false;
    all.pieces.emplace(from, Claimed::Piece{to, owner_, 1});
  }
  taken_.emplace(from, to);
  return true;
}

void MemoryClaims::release(const void* begin) {
  if (taken_.erase(address(begin)) == 0) return;
  Claimed& all = claimed();
  const std::lock_guard lock(all.mu);
  const auto piece = all.pieces.find(address(begin));
  if (--piece->second.count == 0) all.pieces.erase(piece);
}

bool MemoryClaims::overlaps(const void* begin, int64_t bytes) const {
  return overlapsIn(taken_, address(begin), address(begin) + static_cast<uintptr_t>(bytes));
}

}  // namespace abele::memory
