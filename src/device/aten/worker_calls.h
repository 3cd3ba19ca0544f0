// One worker's share of an executable: its segments as ready calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <c10/util/Exception.h>

#include "device/aten/arena.h"
#include "device/aten/operator_call.h"
#include "device/aten/refusal.h"
#include "device/aten/step_profile.h"
#include "device/backend.h"
#include "runtime/backend.h"

namespace abele::device {

/// Requires: everything that it refers to outlives it. Threads: the worker's.
class WorkerCalls {
 public:
  using Make = std::function<std::unique_ptr<Call>(const exe::Instruction&, exe::Direction)>;
  /// watch: may be null.
  WorkerCalls(const exe::Executable& executable, int32_t worker, const SlotTable& slots, RandomSource& random,
              const StepProfile& profile, Watch* watch, const Make& make);

  /// A generator of the user's program, and the draws of a micro-batch from it.
  struct OwnSource {
    RandomSource* random = nullptr;
    int64_t draws = 0;
    int64_t normals = 0;
  };
  void drawFrom(std::vector<OwnSource> own);

  /// Runs the calls of an action's segment. process: as in Executable::globalMicroBatch. Calls before(i, state) before
  /// call i. Throws the errors of the calls, and E0601 for errors of kernels.
  template <class Before>
  void run(const runtime::ActionContext& context, int64_t process, const Before& before) {
    place(context, process);
    const StepProfile::Action action(profile_, executable_.segments[context.segment]);
    runCalls(context.segment, 0, segments_[context.segment].size(), action.isOn(), before);
  }

  /// The first part of run(), for a device that replaces some calls by other work: sets the frames of the micro-batch,
  /// and the start of its random numbers.
  void place(const runtime::ActionContext& context, int64_t process);
  /// The second part: makes the calls [begin, end) of the action that was passed to place().
  template <class Before>
  void runCalls(int32_t segment, std::size_t begin, std::size_t end, const Before& before) {
    runCalls(segment, begin, end, /*is_observed=*/false, before);
  }
  /// The state that the calls of the action read.
  const CallState& state() const { return state_; }

 private:
  template <class Before>
  void runCalls(int32_t segment, std::size_t begin, std::size_t end, bool is_observed, const Before& before) {
    const std::vector<std::unique_ptr<Call>>& calls = segments_[segment];
    std::size_t i = begin;
    try {
      for (; i < end; ++i) {
        before(i, state_);
        if (is_observed)
          runObserved(*calls[i], segment, i);
        else
          calls[i]->run(state_);
      }
    } catch (const c10::Error& error) {
      refuseCall(executable_, executable_.segments[segment].instructions[i], error);
    }
    state_.stack.clear();
  }
  /// The same as call.run(); torch's profiler sees it under the operator's name.
  void runObserved(Call& call, int32_t segment, std::size_t instruction);
  static void addCalls(const exe::Segment& segment, const SlotTable& slots, Watch* watch, const Make& make,
                       std::vector<std::unique_ptr<Call>>& calls);

  const exe::Executable& executable_;
  const StepProfile& profile_;
  std::vector<std::vector<std::unique_ptr<Call>>> segments_;  // by segment; empty for segments of other workers
  std::vector<int32_t> frame_of_group_;
  CallState state_;
  std::vector<OwnSource> own_;
  std::vector<OwnDraws> own_draws_;  // one for each entry of own_
};

}  // namespace abele::device
