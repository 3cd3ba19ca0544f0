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
/// (base/normals.h) may come from another operator, stage, micro-batch or step, so it is made again from its pair when
/// an operator takes it. If values decide how much an operator draws, one worker runs everything. It draws on from its
/// current position and can only go back to positions where it has been.
/// Threads: the worker's; begin(), stand() and generator() between steps.
class RandomStream final : public RandomSource {
 public:
  /// varies: values decide how much an operator of the program draws.
  explicit RandomStream(bool varies = false);
  /// Lets the step draw from `start` on.
  void begin(const at::Generator& start);
  /// Throws E0106 if values decide how much is drawn, and the stream has never been at this place.
  const at::Generator& draw(const RandomPlace& place) override;
  /// The generator in exactly the state of eager's at the place; for use without drawing.
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
  int64_t normals_ = 0;                   // the generator has the spare, if any, that follows this many normal numbers
  std::map<int64_t, at::mt19937> marks_;  // engines at positions of this step, for recomputation, which goes back
  Key now_;
  std::map<Key, at::Generator> seen_;  // if values decide how much is drawn
};

}  // namespace abele::device
