// One worker's share of an executable: its segments as ready calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <c10/util/Exception.h>

#include "runtime/backend.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/operator_call.h"
#include "runtime/device/aten/refusal.h"
#include "runtime/device/aten/step_profile.h"
#include "runtime/device/backend.h"

namespace abele::runtime {

/// Everything it refers to outlives it. Threads: the worker's.
class WorkerCalls {
 public:
  using Make = std::function<std::unique_ptr<Call>(const exe::Instruction&, exe::Direction)>;
  /// watch: may be null.
  WorkerCalls(const exe::Executable& executable, int32_t worker, const SlotTable& slots, RandomSource& random,
              const StepProfile& profile, Watch* watch, const Make& make);

  /// Runs the calls of an action's segment. process: as of Executable::globalMicroBatch. before(i, state) comes ahead
  /// of call i. Throws what the calls throw, E0601 for errors of kernels.
  template <class Before>
  void run(const ActionContext& context, int64_t process, const Before& before) {
    place(context, process);
    const StepProfile::Action action(profile_, executable_.segments[context.segment]);
    const std::vector<std::unique_ptr<Call>>& calls = segments_[context.segment];
    std::size_t i = 0;
    try {
      for (; i < calls.size(); ++i) {
        before(i, state_);
        if (action.isOn())
          runObserved(*calls[i], context.segment, i);
        else
          calls[i]->run(state_);
      }
    } catch (const c10::Error& error) {
      refuseCall(executable_, executable_.segments[context.segment].instructions[i], error);
    }
    state_.stack.clear();
  }

 private:
  // Says in which frames the micro-batch lies, and where its random numbers start.
  void place(const ActionContext& context, int64_t process);
  void runObserved(Call& call, int32_t segment, std::size_t instruction);

  const exe::Executable& executable_;
  const StepProfile& profile_;
  std::vector<std::vector<std::unique_ptr<Call>>> segments_;  // by segment; empty for those of other workers
  std::vector<int64_t> frames_;                               // by group
  std::vector<int32_t> frame_of_group_;
  CallState state_;
};

}  // namespace abele::runtime
