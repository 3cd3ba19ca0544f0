// Answers of trials of bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

namespace abele::runtime {

/// Another order of additions gives many elements the same bits: fewer are equal by luck, and so their trials repeat.
constexpr int64_t kFewTrialElements = 1024, kMostTrialRounds = 256;

/// How often a trial repeats. elements: what one round compares; numbers: what it makes up and reads.
inline int64_t trialRounds(int64_t elements, int64_t numbers, int64_t least) {
  constexpr int64_t kNumbers = int64_t{1} << 21;
  const int64_t wanted = kFewTrialElements / std::max<int64_t>(1, elements);
  return std::clamp(std::min(wanted, kNumbers / std::max<int64_t>(1, numbers)), least, kMostTrialRounds);
}

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
