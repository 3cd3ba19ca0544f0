// The random numbers of a step on an accelerator: a seed, and an offset that every kernel moves.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "runtime/device/aten/operator_call.h"
#include "runtime/device/aten/random_source.h"

namespace abele::runtime {

/// Of the host: one that nothing draws from.
at::Generator newGenerator(c10::Device device);

/// A worker's generator. Positions count offsets since the step began, so that it goes to any of them at once.
class RandomPosition final : public RandomSource {
 public:
  explicit RandomPosition(c10::Device device);
  /// The step draws from `start` on.
  void begin(const at::Generator& start);
  const at::Generator& draw(const RandomPlace& place) override;
  const at::Generator& generator() const override { return lent_.defined() ? lent_ : generator_; }

 private:
  friend class LentDefault;
  at::Generator generator_;
  uint64_t start_ = 0;
  at::Generator lent_;  // in place of ours, while it is lent
};

/// While it lives, the default generator of the worker's device stands at a place of the step, and the worker draws
/// from it, wherever its operators say that they are: graphs of devices know no other generator. Then it stands where
/// it was. Nobody else of ours uses a default generator meanwhile. stream: where a graph that draws is replayed;
/// replays of one device that draw follow each other. Threads: all workers and devices.
class LentDefault {
 public:
  LentDefault(RandomPosition& random, const RandomPlace& place, const std::optional<c10::Stream>& stream);
  ~LentDefault();
  LentDefault(const LentDefault&) = delete;
  LentDefault& operator=(const LentDefault&) = delete;

 private:
  RandomPosition& random_;
  std::optional<c10::Stream> stream_;
  std::unique_lock<std::mutex> lock_;
  uint64_t seed_ = 0, offset_ = 0;
};

/// An operator without an argument for a generator draws from the device's default one: while it is enqueued, that one
/// stands where the operator's place is. Threads: all workers and devices.
std::unique_ptr<Call> makeDefaultGeneratorCall(std::unique_ptr<Call> call, const exe::Instruction& instruction);

}  // namespace abele::runtime
