// Who may touch what: vector clocks of streams, and the history of memory. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace simulated {

/// By stream: how many of its jobs came before.
using Clock = std::vector<uint64_t>;
void join(Clock& into, const Clock& other);

/// A run of bytes that a job reads or writes.
struct Access {
  uintptr_t begin = 0, end = 0;
  bool writes = false;
};

/// Threads: the caller holds a lock.
class History {
 public:
  /// A job of `stream`, whose clock includes itself. Returns what is not ordered before it, "" for nothing.
  std::string note(const Access& access, int stream, const Clock& clock, const char* name);
  /// Nothing was ever there: memory that waited for all who used it.
  void forget(uintptr_t begin, uintptr_t end);

 private:
  struct Event {
    int stream = -1;
    uint64_t time = 0;
    const char* name = "";
  };
  struct Piece {
    uintptr_t end = 0;
    Event write;
    std::vector<Event> reads;  // the last of each stream
  };
  void splitAt(uintptr_t address);
  std::map<uintptr_t, Piece> pieces_;  // by begin
};

}  // namespace simulated
