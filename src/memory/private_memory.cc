#include "memory/private_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/fork.h"

namespace abele::memory {
namespace {

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// The memory that all objects hold. Never destroyed, because models of static lifetime may outlive it.
struct Claimed {
  struct Piece {
    uintptr_t end;
    const void* owner;
    bool goes_first;
    uint64_t number;
    int count;  // number of objects of this owner
  };
  ProcessMutex mu;
  std::map<uintptr_t, Piece> pieces;   // by begin; they do not overlap
  uint64_t num_pieces = 0;             // that there ever were
  std::atomic<uint64_t> num_lost = 0;  // pieces that were taken away

  bool has(uintptr_t begin, uint64_t number) const {
    const auto piece = pieces.find(begin);
    return piece != pieces.end() && piece->second.number == number;
  }
  /// Makes room for a piece, if those that overlap with it can be taken away.
  bool clear(uintptr_t begin, uintptr_t end, bool goes_first) {
    const auto behind = pieces.lower_bound(end);
    auto first = behind;
    for (; first != pieces.begin() && std::prev(first)->second.end > begin; --first)
      if (!goes_first || std::prev(first)->second.goes_first) return false;
    num_lost += static_cast<uint64_t>(std::distance(first, behind));
    pieces.erase(first, behind);
    return true;
  }
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
  if (overlaps(begin, bytes)) return false;
  const uintptr_t from = address(begin), to = from + static_cast<uintptr_t>(bytes);
  Claimed& all = claimed();
  const std::lock_guard lock(all.mu);
  auto piece = all.pieces.find(from);
  if (piece == all.pieces.end() || piece->second.end != to || piece->second.owner != owner_) {
    if (!all.clear(from, to, goes_first_)) return false;
    piece = all.pieces.emplace(from, Claimed::Piece{to, owner_, goes_first_, ++all.num_pieces, 0}).first;
  }
  ++piece->second.count;
  taken_.emplace(from, Taken{to, piece->second.number});
  return true;
}

bool MemoryClaims::holds(const void* begin) const {
  const auto taken = taken_.find(address(begin));
  if (taken == taken_.end()) return false;
  Claimed& all = claimed();
  const std::lock_guard lock(all.mu);
  return all.has(taken->first, taken->second.piece);
}

bool MemoryClaims::holdsAll() {
  Claimed& all = claimed();
  if (num_lost_ == all.num_lost) return true;
  const std::lock_guard lock(all.mu);
  if (!std::ranges::all_of(taken_, [&](const auto& taken) { return all.has(taken.first, taken.second.piece); }))
    return false;
  num_lost_ = all.num_lost;
  return true;
}

void MemoryClaims::release(const void* begin) {
  const auto taken = taken_.extract(address(begin));
  if (taken.empty()) return;
  Claimed& all = claimed();
  const std::lock_guard lock(all.mu);
  if (!all.has(taken.key(), taken.mapped().piece)) return;
  const auto piece = all.pieces.find(taken.key());
  if (--piece->second.count == 0) all.pieces.erase(piece);
}

bool MemoryClaims::overlaps(const void* begin, int64_t bytes) const {
  const auto behind = taken_.lower_bound(address(begin) + static_cast<uintptr_t>(bytes));
  return behind != taken_.begin() && std::prev(behind)->second.end > address(begin);
}

}  // namespace abele::memory
