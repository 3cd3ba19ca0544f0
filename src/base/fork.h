// Which process this is. A child that fork() made has its parent's memory and none of its threads.
#pragma once

#include <cstdint>

namespace abele {

/// How many forks lie between this process and the one that first asked. Threads: safe.
int64_t forkGeneration();

/// Remembers the process that made it: what lives by threads is dead in a child.
class Home {
 public:
  /// Is this still the process that made the object?
  bool isHere() const { return generation_ == forkGeneration(); }

 private:
  int64_t generation_ = forkGeneration();
};

}  // namespace abele
