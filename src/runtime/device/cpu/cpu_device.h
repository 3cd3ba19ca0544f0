// One worker's share of a CPU executable: its segments as ready calls.
#pragma once

#include <memory>
#include <vector>

#include "runtime/backend.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/operator_call.h"
#include "runtime/device/backend.h"
#include "runtime/device/cpu/agreement.h"
#include "runtime/device/cpu/counted_call.h"
#include "runtime/device/cpu/random_stream.h"
#include "runtime/kernels/optimizers.h"

namespace abele::runtime {

/// Everything it refers to outlives it.
class CpuDevice final : public Device {
 public:
  CpuDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots, std::vector<Hyper>& hypers,
            RandomStream& random, const DeviceOptions& options, GradientCount& gradients,
            const RoundingPosition& rounding, Agreement& agreement);
  void attach() override;
  void run(const ActionContext& context) override;

 private:
  std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, exe::Direction direction, const SlotTable& slots,
                                 std::vector<Hyper>& hypers) const;

  const exe::Executable& executable_;
  DeviceOptions options_;
  bool is_link_;
  GradientCount& gradients_;
  const RoundingPosition& rounding_;
  Agreement& agreement_;
  std::vector<std::vector<std::unique_ptr<Call>>> segments_;  // by segment; empty for those of other workers
  std::vector<int64_t> frames_;                               // by group
  std::vector<int32_t> frame_of_group_;
  CallState state_;
};

}  // namespace abele::runtime
