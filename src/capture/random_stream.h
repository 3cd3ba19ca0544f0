// The random numbers of one capture, and where in the stream each operator draws. Used by draws.cc.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include <ATen/core/Generator.h>

#include "base/fork.h"
#include "capture/annotate.h"

namespace abele::capture {

/// While alive, no other thread draws from the generator. fork() waits for its end, so that a forked child can draw.
class GeneratorLock {
 public:
  explicit GeneratorLock(at::Generator generator);

 private:
  std::lock_guard<ProcessMutex> before_fork_;
  std::lock_guard<std::mutex> lock_;
};

/// By value: a Generator is a shared pointer whose mutex() is not const.
at::Generator copyOf(at::Generator generator);
/// Has it drawn nothing since it was seeded? Of the CPU.
bool isFreshlySeeded(const at::Generator& generator);
/// A mark that drawing leaves and seeding takes away. Nothing for generators that are not the CPU's.
void mark(const at::Generator& generator);
bool isMarked(const at::Generator& generator);
/// Takes it away, if it is still there. before: a copy of the generator from before mark().
void unmark(const at::Generator& generator, const at::Generator& before);

/// Lends a generator to a capture: it starts from the given stream (or its own state), and its state is put back at the
/// end. The device's stream lends a private one, which programs know as torch's default generator (default_mark.h);
/// accelerators, whose kernels ask for it by themselves, the default generator. Where its state is restored, operators
/// draw the same numbers again and get the same offset.
/// Threads: owner only; nothing else may draw from the generator meanwhile.
class RandomStream {
 public:
  /// What was drawn from the begin of the micro-batch up to here. spare: as of Normals.
  struct Place {
    int64_t draws = 0;
    int64_t normals = 0;
    int64_t spare = 0;
  };

  /// What fromOtherSpare puts where there was no spare.
  static constexpr double kAnySpare = 0.25;

  /// saved: the state that the generator has afterwards.
  RandomStream(at::Generator generator, const at::Generator* start, const at::Generator& saved);
  ~RandomStream();
  RandomStream(const RandomStream&) = delete;
  RandomStream& operator=(const RandomStream&) = delete;

  const at::Generator& generator() const { return generator_; }
  /// A copy of it, as it was when it was lent.
  const at::Generator& start() const { return start_; }
  /// Do operators without an argument for a generator draw from the numbers at a known place, too? On accelerators the
  /// device puts the default generator there.
  bool hasOffsets() const { return !generator_.device().is_cpu(); }

  /// Call before an operator that may draw.
  void before();
  /// 32-bit draws (on accelerators: offsets) since before(), at most `limit`; -1 when the state is not that many draws
  /// further.
  int64_t drawsSince(int64_t limit) const;
  /// The spare that before() found, and the one that there is now.
  std::optional<double> spareBefore() const;
  std::optional<double> spareNow() const;
  /// Puts the generator back to where before() found it.
  void rewind();
  /// Moves it to a state of its own.
  void goTo(const at::Generator& state);
  /// Runs `again` from where before() found the generator, with a spare where it had none, and the other way round;
  /// the generator is afterwards where it was. Returns the draws (as drawsSince) and the spare that there was at the
  /// end.
  template <class Again>
  std::pair<int64_t, std::optional<double>> fromOtherSpare(int64_t limit, const Again& again) {
    const at::Generator now = copyOf(generator_);
    turnSpare();
    again();
    const std::pair<int64_t, std::optional<double>> drawn(drawsSince(limit), spareNow());
    goTo(now);
    return drawn;
  }
  /// How many of `draws` draws since before() came after the pair that made this spare; -1: none of them made it.
  int64_t drawsBehindPair(double spare, int64_t draws) const;
  /// What the micro-batch drew before the operator at before(); empty when the program moved the generator to a state
  /// that the stream has not been in.
  const std::optional<Place>& place() const { return place_; }
  /// Where the generator stands now; empty: as of place().
  std::optional<Place> placeNow() const;
  /// The operator drew this many.
  void advance(const BodyDraws& drawn);

 private:
  void turnSpare();

  at::Generator generator_;
  at::Generator start_, saved_;
  at::Generator before_;
  std::unordered_map<uint64_t, Place> places_;  // by the hash of a state of the generator
  std::optional<Place> place_ = Place();
};

}  // namespace abele::capture
