// What a process does next together with all others: told before it is done, so that processes which are in different
// places of their programs, or were given different data, end in an error instead of in wrong numbers or a long wait.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/collective/peers.h"

namespace abele::runtime {

struct Announcement {
  std::string act;                  // in the words of a message, at most kActBytes: "runs a step"
  std::array<uint64_t, 4> facts{};  // what the act must have in common, or its hash; 0: nothing
  static constexpr size_t kActBytes = Peers::kNoteBytes - 4 * sizeof(uint64_t);
};

/// Tells all others, and waits for nobody.
void announce(Peers& peers, const Announcement& own);
/// What all have announced, by process. Throws E0713 in all processes where one does something else; the processes part
/// then, as some may be in the middle of a step. Throws what Peers throws.
std::vector<Announcement> requireSameAct(Peers& peers);
/// The first process whose fact differs from that of the first of its kind, as (its process, that one); {-1, -1}: all
/// agree. kinds: processes p and q are compared where p / kinds == q / kinds.
struct Differing {
  int64_t process = -1, from = -1;
};
Differing firstDiffering(const std::vector<Announcement>& all, size_t fact, int64_t kinds);

/// For facts.
uint64_t hashOf(const void* bytes, size_t count, uint64_t seed = 0);

}  // namespace abele::runtime
