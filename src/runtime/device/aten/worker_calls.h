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
  /// watch: may be null. joins: instructions that stand for others are tried (lanes_call.h); else those others run.
  WorkerCalls(const exe::Executable& executable, int32_t worker, const SlotTable& slots, RandomSource& random,
              const StepProfile& profile, Watch* watch, bool joins, const Make& make);

  /// A generator of the program's own, and what a micro-batch draws from it.
  struct OwnSource {
    RandomSource* random = nullptr;
    int64_t draws = 0;
    int64_t normals = 0;
  };
  void drawFrom(std::vector<OwnSource> own);

  /// Runs the calls of an action's segment. process: as of Executable::globalMicroBatch. before(i, state) comes ahead
  /// of call i. Throws what the calls throw, E0601 for errors of kernels.
  template <class Before>
  void run(const ActionContext& context, int64_t process, const Before& before) {
    place(context, process);
    const StepProfile::Action action(profile_, executable_.segments[context.segment]);
    runCalls(context.segment, 0, segments_[context.segment].size(), action.isOn(), before);
  }

  /// run() in parts, for a device that does something else in place of some calls: says in which frames the micro-batch
  /// lies, and where its random numbers start.
  void place(const ActionContext& context, int64_t process);
  /// Of the action that place() was told, the calls [begin, end).
  template <class Before>
  void runCalls(int32_t segment, std::size_t begin, std::size_t end, const Before& before) {
    runCalls(segment, begin, end, /*is_observed=*/false, before);
  }
  /// What the calls see of the action; of micro-batches side by side, the first.
  const CallState& state(int32_t lane = 0) const { return states_[static_cast<std::size_t>(lane)]; }

 private:
  template <class Before>
  void runCalls(int32_t segment, std::size_t begin, std::size_t end, bool is_observed, const Before& before) {
    const std::vector<PlacedCall>& calls = segments_[segment];
    std::size_t i = begin;
    try {
      for (; i < end; ++i) {
        const PlacedCall& placed = calls[i];
        if (!placed.call) continue;
        CallState& state = states_[placed.lane];
        before(i, state);
        if (is_observed)
          runObserved(placed, segment, i);
        else
          placed.call->run(state);
      }
    } catch (const c10::Error& error) {
      refuseCall(executable_, executable_.segments[segment].instructions[i], states_[calls[i].lane].action.micro_batch,
                 error);
    }
    for (CallState& state : states_) state.stack.clear();
  }
  struct PlacedCall {
    std::unique_ptr<Call> call;  // null: another one stands for it
    std::size_t lane = 0;
  };
  void runObserved(const PlacedCall& placed, int32_t segment, std::size_t instruction);
  void addCalls(const exe::Segment& segment, const SlotTable& slots, Watch* watch, bool joins, const Make& make,
                std::vector<PlacedCall>& calls) const;

  const exe::Executable& executable_;
  const StepProfile& profile_;
  std::vector<std::vector<PlacedCall>> segments_;     // by segment; empty for those of other workers
  std::vector<std::vector<int32_t>> frame_of_group_;  // by lane and group
  std::vector<CallState> states_;                     // by lane
  std::vector<OwnSource> own_;
  std::vector<std::vector<OwnDraws>> own_draws_;  // by lane, of own_
};

}  // namespace abele::runtime
