#include "collective/announcement.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "base/error.h"

namespace abele::collective {
namespace {

std::string textOf(const Announcement& own) {
  ABELE_CHECK(own.act.size() <= Announcement::kActBytes, own.act);
  std::string text = own.act;
  text.resize(Announcement::kActBytes, ' ');
  text.append(reinterpret_cast<const char*>(own.facts.data()), sizeof own.facts);
  return text;
}

Announcement readFrom(const std::string& text) {
  Announcement read{.act = text.substr(0, Announcement::kActBytes)};
  read.act.erase(read.act.find_last_not_of(' ') + 1);
  std::memcpy(read.facts.data(), &text[Announcement::kActBytes], sizeof read.facts);
  return read;
}

}  // namespace

void announce(Peers& peers, const Announcement& own) { peers.announce(textOf(own)); }

std::vector<Announcement> requireSameAct(Peers& peers) {
  std::vector<Announcement> all;
  for (const std::string& text : peers.announced()) all.push_back(readFrom(text));
  for (size_t p = 1; p < all.size(); ++p) {
    if (all[p].act == all[0].act) continue;
    const std::string what = cat("process ", p, " ", all[p].act, " while process 0 ", all[0].act);
    peers.fail(what);
    throwUser(
        ErrorCode::E0713,
        {.what = what,
         .at = cat("process ", peers.process(), " of ", peers.processes()),
         .expected = "the same calls in all processes, in the same order",
         .remedy = "let all processes call the model, copyWeightsToHost(), state_dict() and save(); work of a single "
                   "process comes after them"});
  }
  return all;
}

Differing firstDiffering(const std::vector<Announcement>& all, size_t fact, int64_t kinds) {
  for (int64_t p = 0; p < static_cast<int64_t>(all.size()); ++p) {
    const int64_t first = p / kinds * kinds;
    if (all[static_cast<size_t>(p)].facts[fact] != all[static_cast<size_t>(first)].facts[fact]) return {p, first};
  }
  return {};
}

uint64_t hashOf(const void* bytes, size_t count, uint64_t seed) { return XXH3_64bits_withSeed(bytes, count, seed); }

}  // namespace abele::collective
