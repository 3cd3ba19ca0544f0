// The random numbers of a step on an accelerator: a seed, and an offset that every kernel moves.
#pragma once

#include <memory>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

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
  const at::Generator& generator() const override { return generator_; }

 private:
  at::Generator generator_;
  uint64_t start_ = 0;
};

/// An operator without an argument for a generator draws from the device's default one: while it is enqueued, that one
/// stands where the operator's place is. Threads: all workers and devices.
std::unique_ptr<Call> makeDefaultGeneratorCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                               c10::Device device);

}  // namespace abele::runtime
