// One instruction of an executable, made ready to be called many times.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/stack.h>

#include "exe/executable.h"
#include "runtime/backend.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/random_source.h"
#include "runtime/kernels/rounding.h"

namespace abele::runtime {

/// What a call sees of the running step.
struct CallState {
  const int32_t* frame_of_group = nullptr;
  ActionContext action;
  int64_t random_base = 0;   // draws of the micro-batches before
  int64_t normals_base = 0;  // and their normal numbers
  RandomSource* random = nullptr;
  const OwnDraws* own = nullptr;  // by generator of the program's own
  RoundingSeed rounding;          // of this instruction
  torch::jit::Stack stack;        // reused by every call

  /// The first micro-batch of a group: what the sum held before is gone.
  bool beginsSum() const { return action.group_index == 0; }
  RandomPlace placeOf(const exe::Instruction& instruction) const {
    return placeOf(instruction, random_base, normals_base);
  }
  static RandomPlace placeOf(const exe::Instruction& instruction, int64_t draws_base, int64_t normals_base) {
    return {.draws_before = draws_base + instruction.random_offset,
            .normals_before = normals_base + instruction.normals.before,
            .spare = draws_base + instruction.normals.spare,
            .draws = instruction.random_draws,
            .normals = instruction.normals.count};
  }
};

class Call {
 public:
  virtual ~Call() = default;
  virtual void run(CallState& state) = 0;
  /// The same, seen by torch's profiler under the operator's name.
  virtual void runObserved(CallState& state, const std::string& name);
};

/// An ATen operator. In order of preference: written operands as they are; a native `out=` kernel into the slots; the
/// functional operator with the allocator steered, so that its results are born in their slots (copied where not).
/// All of them run the kernel that eager runs. Throws E0106 for an operator that has no CPU kernel.
std::unique_ptr<Call> makeOperatorCall(const exe::Instruction& instruction, const SlotTable& slots);

/// An operator that gives float16: computed in float32 and rounded stochastically. Null for all others, and for those
/// that draw random numbers.
std::unique_ptr<Call> makeRoundedOperatorCall(const exe::Instruction& instruction, const SlotTable& slots);

}  // namespace abele::runtime
