// The random numbers of one step, as eager would draw them: one sequence over all micro-batches, read at known
// positions.
#pragma once

#include <cstdint>
#include <map>

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>

#include "runtime/device/aten/random_source.h"

namespace abele::runtime {

/// Moves an engine by `draws` 32-bit numbers, without making them.
void skipDraws(at::mt19937& engine, int64_t draws);

/// A worker's generator. Positions count 32-bit draws since the step began.
/// normal_ of fewer than 16 elements keeps a spare sample in the generator; it is passed on only to an op that follows
/// on the same worker without a gap. A program where it would cross a micro-batch or a stage draws other numbers than
/// eager there.
/// A loop or branch may draw fewer numbers than the program keeps positions for. Where one worker runs everything in
/// order, what follows then draws the next numbers, as in eager; several workers keep to the positions, which they know
/// without each other.
/// Threads: the worker's; begin() and generator() between steps.
class RandomStream final : public RandomSource {
 public:
  /// is_alone: no other worker draws from this sequence.
  explicit RandomStream(bool is_alone = true);
  /// The step draws from `start` on.
  void begin(const at::Generator& start);
  /// The generator, standing at `position`. The caller draws exactly `draws` numbers from it, or fewer.
  const at::Generator& draw(int64_t position, int64_t draws, bool or_fewer = false) override;
  int64_t position() const { return position_; }
  const at::Generator& generator() const override { return generator_; }

 private:
  void seek(int64_t position);

  bool is_alone_;
  at::Generator generator_;
  int64_t position_ = 0;
  bool may_be_behind_ = false;            // does the generator perhaps stand before position_?
  std::map<int64_t, at::mt19937> marks_;  // engines at positions of this step, for recomputation that goes back
};

}  // namespace abele::runtime
