// One worker's share of a CPU executable: its segments as ready calls.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/aten/arena.h"
#include "device/aten/gradient_count.h"
#include "device/aten/operator_call.h"
#include "device/aten/replica_exchange.h"
#include "device/aten/worker_calls.h"
#include "device/backend.h"
#include "device/cpu/random_stream.h"
#include "device/cpu/rounding_places.h"
#include "device/processes/agreement.h"
#include "device/processes/stage_shares.h"
#include "kernels/optimizers.h"
#include "runtime/backend.h"

namespace abele::device {

/// Requires: all that it refers to outlives it.
class CpuDevice final : public runtime::Device {
 public:
  CpuDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
            std::vector<kernels::Hyper>& hypers, RandomStream& random, const DeviceOptions& options,
            GradientCount& gradients, const RoundingPosition& rounding, Agreement& agreement, const StageShares& shared,
            ReplicaExchange& exchange, const StepProfile& profile, std::vector<WorkerCalls::OwnSource> own);
  void attach() override;
  void detach() override;
  void run(const runtime::ActionContext& context) override;

 private:
  std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, exe::Direction direction, const SlotTable& slots,
                                 std::vector<kernels::Hyper>& hypers) const;

  const exe::Executable& executable_;
  DeviceOptions options_;
  bool is_link_;
  const exe::Instruction* first_joint_;  // this worker's; may be null
  GradientCount& gradients_;
  const RoundingPosition& rounding_;
  std::optional<RoundingPlaces> rounding_places_;  // absent: rounding is not stochastic
  Agreement& agreement_;
  const StageShares& shared_;
  ReplicaExchange& exchange_;
  int32_t worker_;
  WorkerCalls calls_;  // last, because it refers to the others
};

}  // namespace abele::device
