// One worker's share of a CPU executable: its segments as ready calls.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/backend.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/gradient_count.h"
#include "runtime/device/aten/operator_call.h"
#include "runtime/device/aten/replica_exchange.h"
#include "runtime/device/aten/worker_calls.h"
#include "runtime/device/backend.h"
#include "runtime/device/cpu/random_stream.h"
#include "runtime/device/cpu/rounding_places.h"
#include "runtime/device/processes/agreement.h"
#include "runtime/device/processes/stage_shares.h"
#include "runtime/kernels/optimizers.h"

namespace abele::runtime {

/// All that it refers to outlives it.
class CpuDevice final : public Device {
 public:
  CpuDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots, std::vector<Hyper>& hypers,
            RandomStream& random, const DeviceOptions& options, GradientCount& gradients,
            const RoundingPosition& rounding, Agreement& agreement, const StageShares& shared,
            ReplicaExchange& exchange, const StepProfile& profile, std::vector<WorkerCalls::OwnSource> own);
  void attach() override;
  void run(const ActionContext& context) override;

 private:
  std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, exe::Direction direction, const SlotTable& slots,
                                 std::vector<Hyper>& hypers) const;

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

}  // namespace abele::runtime
