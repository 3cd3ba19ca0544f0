// The random numbers of one step, as eager PyTorch would draw them: one sequence over all micro-batches, read at known
// positions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>

#include "device/aten/random_source.h"

namespace abele::device {

/// Moves an engine forward by `draws` 32-bit numbers, without making them.
void skipDraws(at::mt19937& engine, int64_t draws);

/// A worker's generator. Positions count 32-bit draws since the step began. The spare of normal numbers
/// (base/normals.h) may come from another operator, stage, micro-batch or step, so it is computed again from its pair
/// when an operator takes it. If the number of an operator's draws depends on values, one worker runs everything; it
/// continues from its current position and can only return to earlier positions.
/// Threads: the worker's; begin(), stand() and generator() between steps.
class RandomStream final : public RandomSource {
 public:
  /// varies: the number of draws of some operator depends on values.
  explicit RandomStream(bool varies = false);
  /// Starts a step, which draws from the state of `start` on.
  void begin(const at::Generator& start);
  /// Throws E0106 if the number of draws depends on values and the stream has never been at this place.
  const at::Generator& draw(const RandomPlace& place) override;
  /// The generator in the state that eager's has at the place; for use without drawing.
  const at::Generator& stand(const RandomPlace& place);
  int64_t position() const { return position_; }
  const at::Generator& generator() const override { return generator_; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // draws, and normal numbers, before a place

  int64_t positionOf(int64_t draws, int64_t normals) const;
  void go(const RandomPlace& place, bool finds_spare);
  void makeSpare(const RandomPlace& place);
  void seek(int64_t position);
  void goWhereItWas(const Key& key);

  bool varies_;
  at::Generator generator_;
  std::optional<double> first_spare_;  // the spare at the start of the step
  int64_t position_ = 0;
  int64_t normals_ = 0;                   // number of normal numbers after which the generator has its present spare
  std::map<int64_t, at::mt19937> marks_;  // engines at positions of this step; recomputation returns to them
  Key now_;
  std::map<Key, at::Generator> seen_;  // if the number of draws depends on values
};

}  // namespace abele::device
