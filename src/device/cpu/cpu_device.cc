#include "device/cpu/cpu_device.h"

#include <utility>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/error.h"
#include "base/instructions.h"
#include "device/aten/counted_call.h"
#include "device/aten/own_call.h"
#include "device/cpu/checked_call.h"
#include "device/processes/joint_call.h"
#include "device/processes/message_call.h"
#include "kernels/intra_op_threads.h"
#include "memory/steering_allocator.h"

namespace abele::device {

CpuDevice::CpuDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
                     std::vector<kernels::Hyper>& hypers, RandomStream& random, const DeviceOptions& options,
                     GradientCount& gradients, const RoundingPosition& rounding, Agreement& agreement,
                     const StageShares& shared, ReplicaExchange& exchange, const StepProfile& profile,
                     std::vector<WorkerCalls::OwnSource> own)
    : executable_(executable),
      options_(options),
      is_link_(executable.workers[worker].isLink()),
      first_joint_(firstJoint(executable, worker)),
      gradients_(gradients),
      rounding_(rounding),
      agreement_(agreement),
      shared_(shared),
      exchange_(exchange),
      worker_(worker),
      calls_(executable, worker, slots, random, profile, options.watch,
             [&](const exe::Instruction& instruction, exe::Direction direction) {
               return makeCall(instruction, direction, slots, hypers);
             }) {
  calls_.drawFrom(std::move(own));
  if (options.stochastic_rounding) rounding_places_.emplace(executable, options.process);
}

std::unique_ptr<Call> CpuDevice::makeCall(const exe::Instruction& instruction, exe::Direction direction,
                                          const SlotTable& slots, std::vector<kernels::Hyper>& hypers) const {
  const bool is_ours = isOwn(instruction.op);
  if (isJoint(instruction)) {
    ABELE_CHECK(shared_.ofStages(), instruction.op, " without other processes");
    return makeJointCall(executable_, instruction, slots, *shared_.ofStages(),
                         &instruction == first_joint_ ? &agreement_ : nullptr);
  }
  if (isMessage(instruction)) {
    ABELE_CHECK(shared_.ofReplica(), instruction.op, " without other processes");
    return makeMessageCall(instruction, slots, *shared_.ofReplica());
  }
  if (exchange_.hasWaits() && ReplicaExchange::isExchange(instruction))
    return exchange_.makeCall(instruction, slots, worker_);
  std::unique_ptr<Call> call;
  if (options_.stochastic_rounding)
    call = is_ours ? makeRoundedOwnCall(instruction, slots, hypers, gradients_)
                   : makeRoundedOperatorCall(instruction, slots);
  if (!call)
    call = is_ours ? makeOwnCall(instruction, slots, hypers, gradients_) : makeOperatorCall(instruction, slots);
  const bool gives_gradients = direction == exe::Direction::kBackward || direction == exe::Direction::kWeightGrad;
  if (options_.gradient_edge > 0 && gives_gradients)
    call = makeCountedCall(std::move(call), instruction, slots, options_.gradient_edge, gradients_);
  return options_.floating_point_exceptions ? makeCheckedCall(std::move(call), executable_, instruction, slots)
                                            : std::move(call);
}

// A link copies while other workers compute, so one thread is enough.
void CpuDevice::attach() { kernels::setIntraOpThreads(is_link_ ? 1 : options_.threads_per_device); }
void CpuDevice::detach() { memory::dropCache(); }

void CpuDevice::run(const runtime::ActionContext& context) {
  // The thread may be the caller's, inside autocast or another mode.
  const c10::impl::ForceDispatchKeyGuard plain(c10::default_included_set, c10::default_excluded_set);
  const c10::InferenceMode no_autograd;
  // Some kernels (mkldnn_rnn_layer) read the mode to decide what they keep for backward.
  const c10::AutoGradMode as_captured(executable_.training);
  const memory::CacheScope cache;
  if (!rounding_places_)  // rounding needs no seeds
    return calls_.run(context, options_.process, [](std::size_t, CallState&) {});
  calls_.run(context, options_.process, [&](std::size_t i, CallState& state) {
    state.rounding = rounding_places_->of(rounding_, state.action, i);
  });
}

}  // namespace abele::device
