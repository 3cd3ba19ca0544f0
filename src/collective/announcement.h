// Before all processes do something together, each announces what it will do. If processes are at different places of
// their programs, or have different data, the announcements differ, and all get an error instead of wrong numbers or a
// long wait.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "collective/peers.h"

namespace abele::collective {

struct Announcement {
  std::string act;                  // as in a message, at most kActBytes: "runs a step"
  std::array<uint64_t, 4> facts{};  // facts, or their hashes, that must be the same in all processes; 0: none
  static constexpr size_t kActBytes = Peers::kNoteBytes - 4 * sizeof(uint64_t);
};

/// Sends the announcement to all other processes without waiting for them.
void announce(Peers& peers, const Announcement& own);
/// Returns the announcements of all processes, by process. If one process does something else, all throw E0713 and
/// leave the group, because some may be in the middle of a step. Throws what Peers throws.
std::vector<Announcement> requireSameAct(Peers& peers);
/// Finds the first process whose fact differs from the fact of the first process of its kind. Returns both, or {-1,
/// -1}. kinds: processes p and q are compared if p / kinds == q / kinds.
struct Differing {
  int64_t process = -1, from = -1;
};
Differing firstDiffering(const std::vector<Announcement>& all, size_t fact, int64_t kinds);

/// Hashes bytes for Announcement::facts.
uint64_t hashOf(const void* bytes, size_t count, uint64_t seed = 0);

}  // namespace abele::collective
