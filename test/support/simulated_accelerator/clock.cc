#include "clock.h"

#include <algorithm>
#include <iterator>

namespace simulated {
namespace {

bool isBefore(uint64_t time, int stream, const Clock& clock) {
  return static_cast<size_t>(stream) < clock.size() && time <= clock[static_cast<size_t>(stream)];
}

}  // namespace

void join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

void History::splitAt(uintptr_t address) {
  auto next = pieces_.upper_bound(address);
  if (next == pieces_.begin()) return;
  auto piece = std::prev(next);
  if (piece->first == address || piece->second.end <= address) return;
  pieces_.emplace_hint(next, address, piece->second);
  piece->second.end = address;
}

std::string History::note(const Access& access, int stream, const Clock& clock, const char* name) {
  if (access.begin >= access.end) return {};
  splitAt(access.begin);
  splitAt(access.end);
  std::string finding;
  const auto look = [&](const Event& earlier, const char* what) {
    if (earlier.stream < 0 || isBefore(earlier.time, earlier.stream, clock) || !finding.empty()) return;
    finding = std::string(name) + " on stream " + std::to_string(stream) + (access.writes ? " writes" : " reads") +
              " what " + earlier.name + " on stream " + std::to_string(earlier.stream) + " " + what +
              ", and nothing orders them";
  };
  const Event now{stream, clock[static_cast<size_t>(stream)], name};
  const auto first = pieces_.lower_bound(access.begin);
  auto it = first;
  uintptr_t covered = access.begin;
  for (; it != pieces_.end() && it->first < access.end; ++it) {
    Piece& piece = it->second;
    look(piece.write, "writes");
    if (access.writes) {
      for (const Event& read : piece.reads) look(read, "reads");
      continue;
    }
    if (covered < it->first) pieces_.emplace(covered, Piece{it->first, {}, {now}});
    covered = piece.end;
    const auto same =
        std::find_if(piece.reads.begin(), piece.reads.end(), [&](const Event& read) { return read.stream == stream; });
    if (same != piece.reads.end())
      *same = now;
    else
      piece.reads.push_back(now);
  }
  if (access.writes) {
    pieces_.erase(first, it);
    pieces_.emplace(access.begin, Piece{access.end, now, {}});
  } else if (covered < access.end) {
    pieces_.emplace(covered, Piece{access.end, {}, {now}});
  }
  return finding;
}

void History::forget(uintptr_t begin, uintptr_t end) {
  splitAt(begin);
  splitAt(end);
  pieces_.erase(pieces_.lower_bound(begin), pieces_.lower_bound(end));
}

}  // namespace simulated
