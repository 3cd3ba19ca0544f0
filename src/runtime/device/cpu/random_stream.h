// The random numbers of one step, as eager would draw them: one sequence over all micro-batches, read at known
// positions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>

#include "runtime/device/aten/random_source.h"

namespace abele::runtime {

/// Moves an engine by `draws` 32-bit numbers, without making them.
void skipDraws(at::mt19937& engine, int64_t draws);

/// A worker's generator. Positions count 32-bit draws since the step began. The spare of normal numbers
/// (base/normals.h) may come from another operator, stage, micro-batch or step: it is made again from its pair where
/// somebody takes it. Where values decide how much an operator draws, one worker runs everything, draws on from where
/// it stands, and goes back only to where it has been. Threads: the worker's; begin(), stand() and generator() between
/// steps.
class RandomStream final : public RandomSource {
 public:
  /// varies: a program in which values decide how much an operator draws.
  explicit RandomStream(bool varies = false);
  /// The step draws from `start` on.
  void begin(const at::Generator& start);
  /// Throws E0106 where values decide how much is drawn, and nothing has led here.
  const at::Generator& draw(const RandomPlace& place) override;
  /// The generator with everything that eager's has at the place, where nothing is drawn.
  const at::Generator& stand(const RandomPlace& place);
  int64_t position() const { return position_; }
  const at::Generator& generator() const override { return generator_; }

 private:
  using Key = std::pair<int64_t, int64_t>;  // draws and normal numbers before

  int64_t positionOf(int64_t draws, int64_t normals) const;
  void go(const RandomPlace& place, bool finds_spare);
  void makeSpare(const RandomPlace& place);
  void seek(int64_t position);
  void goWhereItWas(const Key& key);

  bool varies_;
  at::Generator generator_;
  std::optional<double> first_spare_;  // that the step began with
  int64_t position_ = 0;
  int64_t normals_ = 0;                   // the generator has the spare, or none, that there is behind so many
  std::map<int64_t, at::mt19937> marks_;  // engines at positions of this step, for recomputation that goes back
  Key now_;
  std::map<Key, at::Generator> seen_;  // where values decide
};

}  // namespace abele::runtime
