// Answers of trials of bits.
#pragma once

#include <map>
#include <mutex>

namespace abele::runtime {

/// What trials have found, kept for the process: make one that is never destroyed, since models of static lifetime
/// outlive it otherwise. Threads: safe.
template <class Key, class Answer>
class KnownTrials {
 public:
  /// attempt: makes the answer where it is not known. Outside of the lock: others need not wait, and who tries the same
  /// finds the same.
  template <class Attempt>
  Answer of(const Key& key, const Attempt& attempt) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = known_.find(key); found != known_.end()) return found->second;
    }
    const Answer answer = attempt();
    const std::lock_guard<std::mutex> lock(mutex_);
    return known_[key] = answer;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Answer> known_;
};

}  // namespace abele::runtime
