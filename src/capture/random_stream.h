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

/// Takes the generator by value, because it is a shared pointer whose mutex() is not const.
at::Generator copyOf(at::Generator generator);
/// Whether a generator of the CPU has drawn nothing since it was seeded.
bool isFreshlySeeded(const at::Generator& generator);
/// Sets a mark that draws do not change and seeding removes. Does nothing for generators of other devices than the CPU.
void mark(const at::Generator& generator);
bool isMarked(const at::Generator& generator);
/// Removes the mark if it is still set. before: a copy of the generator from before mark().
void unmark(const at::Generator& generator, const at::Generator& before);

/// The generator that a capture draws from. It starts from the given state (or its own), and its state is restored at
/// the end. On the CPU it is a private generator that replaces torch's default one (default_mark.h). On accelerators it
/// is the default generator itself, because kernels use that one without an argument. If the program restores the
/// generator's state, operators draw the same numbers again and get the same offset.
/// Threads: owner only; nothing else may draw from the generator meanwhile.
class RandomStream {
 public:
  /// The numbers drawn since the start of the micro-batch. spare: as in Normals.
  struct Place {
    int64_t draws = 0;
    int64_t normals = 0;
    int64_t spare = 0;
  };

  /// fromOtherSpare sets this spare if the generator had none.
  static constexpr double kAnySpare = 0.25;

  /// saved: the state to restore at the end.
  RandomStream(at::Generator generator, const at::Generator* start, const at::Generator& saved);
  ~RandomStream();
  RandomStream(const RandomStream&) = delete;
  RandomStream& operator=(const RandomStream&) = delete;

  const at::Generator& generator() const { return generator_; }
  /// A copy of the generator in its state at the start of the capture.
  const at::Generator& start() const { return start_; }
  /// Whether operators without a generator argument also draw at a known offset: on accelerators, whose default
  /// generator the device moves to the offset.
  bool hasOffsets() const { return !generator_.device().is_cpu(); }

  /// Call before an operator that may draw.
  void before();
  /// Number of 32-bit draws (on accelerators: offsets) since before(). -1 if no number up to `limit` leads to the
  /// present state.
  int64_t drawsSince(int64_t limit) const;
  /// The spare at before(), and the present one.
  std::optional<double> spareBefore() const;
  std::optional<double> spareNow() const;
  /// Restores the generator's state at before().
  void rewind();
  /// Sets the generator's state.
  void goTo(const at::Generator& state);
  /// Runs `again` from the state at before(), but without a spare if there was one, and with one if there was none.
  /// Restores the present state afterwards. Returns the draws (as drawsSince) and the spare at the end.
  template <class Again>
  std::pair<int64_t, std::optional<double>> fromOtherSpare(int64_t limit, const Again& again) {
    const at::Generator now = copyOf(generator_);
    turnSpare();
    again();
    const std::pair<int64_t, std::optional<double>> drawn(drawsSince(limit), spareNow());
    goTo(now);
    return drawn;
  }
  /// How many of the `draws` draws since before() came after the pair whose second number is this spare; -1 if it is of
  /// no such pair.
  int64_t drawsBehindPair(double spare, int64_t draws) const;
  /// The position of the micro-batch at before(); empty if the program set a state that the stream has not been in.
  const std::optional<Place>& place() const { return place_; }
  /// The present position; empty as in place().
  std::optional<Place> placeNow() const;
  /// Adds the draws of the operator to the position.
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
