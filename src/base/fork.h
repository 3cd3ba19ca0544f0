// Detects a fork. A child made by fork() has its parent's memory and none of its threads.
#pragma once

#include <cstdint>
#include <mutex>

namespace abele {

/// The number of forks between the process that called this first and this one.   Threads: safe.
int64_t forkGeneration();

/// Remembers the process that made the object. In a forked child the object's threads do not exist, so it cannot work
/// there.
class Home {
 public:
  /// True if this is still the process that made the object.
  bool isHere() const { return generation_ == forkGeneration(); }

 private:
  int64_t generation_ = forkGeneration();
};

/// A mutex that is free in a forked child: fork() waits until no thread holds one of these. A thread must release it
/// soon, and must not wait for Python's interpreter while it holds one, because os.fork() holds the interpreter's lock.
/// Requires: the object is never destroyed, or has static lifetime.
class ProcessMutex : public std::mutex {
 public:
  ProcessMutex();
};

}  // namespace abele
