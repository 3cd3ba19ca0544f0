// The random numbers of a step on an accelerator: a seed, and an offset that every kernel advances.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "device/aten/operator_call.h"
#include "device/aten/random_source.h"

namespace abele::device {

/// A generator of the device; for the host, one that nothing draws from.
at::Generator newGenerator(c10::Device device);

/// A worker's generator. A position is the offset since the step began, so the generator can jump to any of them.
class RandomPosition final : public RandomSource {
 public:
  explicit RandomPosition(c10::Device device);
  /// Starts a step, which draws from the state of `start` on.
  void begin(const at::Generator& start);
  const at::Generator& draw(const RandomPlace& place) override;
  const at::Generator& generator() const override { return lent_.defined() ? lent_ : generator_; }

 private:
  friend class LentDefault;
  at::Generator generator_;
  uint64_t start_ = 0;
  at::Generator lent_;  // the device's default generator, which replaces our own while a LentDefault lives
};

/// While it lives, the worker's operators draw from the default generator of its device, at their places of the step,
/// because graphs of devices can use no other generator. The destructor restores the default generator, which no other
/// code of ours uses meanwhile. stream: replays a graph that draws; such replays on one device run one after the other.
/// Threads: all workers and devices.
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

/// For an operator without a generator argument, which draws from the device's default generator. While the call is
/// enqueued, the default generator is at the operator's place. Threads: all workers and devices.
std::unique_ptr<Call> makeDefaultGeneratorCall(std::unique_ptr<Call> call, const exe::Instruction& instruction);

}  // namespace abele::device
