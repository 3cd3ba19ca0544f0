// Stores the results of trials, which compare the bits or the times of two kernels.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "base/fork.h"

namespace abele::kernels {

/// Additions in another order give many elements the same bits, so a trial with few elements may succeed by chance.
/// Such trials are repeated.
constexpr int64_t kFewTrialElements = 1024, kMostTrialRounds = 256;

/// The number of rounds of a trial. elements: compared in one round; numbers: made and read in one round.
inline int64_t trialRounds(int64_t elements, int64_t numbers, int64_t least) {
  constexpr int64_t kNumbers = int64_t{1} << 21;
  const int64_t wanted = kFewTrialElements / std::max<int64_t>(1, elements);
  return std::clamp(std::min(wanted, kNumbers / std::max<int64_t>(1, numbers)), least, kMostTrialRounds);
}

/// The time of work(), or `least` if that is less.
template <class Work>
int64_t leastNs(int64_t least, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::min<int64_t>(least, std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

/// Smaller differences of times may be noise.
inline bool isClearlyLess(int64_t ns, int64_t than_ns) {
  return static_cast<double>(ns) < 0.95 * static_cast<double>(than_ns);
}

/// The results of trials, kept for the life of the process. The object must never be destroyed, because models of
/// static lifetime may outlive it. Threads: safe.
template <class Key, class Answer>
class KnownTrials {
 public:
  /// attempt: runs the trial if its result is not known. It runs outside the lock, so other threads need not wait. If
  /// two threads run the same trial, the result of the one that ends first counts.
  template <class Attempt>
  Answer of(const Key& key, const Attempt& attempt) {
    if (const std::optional<Answer> known = find(key)) return *known;
    const Answer answer = attempt();
    const std::lock_guard lock(mutex_);
    return known_.try_emplace(key, answer).first->second;
  }
  /// Nothing if the result is not known.
  std::optional<Answer> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(key);
    if (found == known_.end()) return std::nullopt;
    return std::optional<Answer>(std::in_place, found->second);
  }

 private:
  ProcessMutex mutex_;
  std::map<Key, Answer> known_;
};

}  // namespace abele::kernels
