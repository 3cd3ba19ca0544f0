// One instruction of an executable, prepared for many calls.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/stack.h>

#include "device/aten/arena.h"
#include "device/aten/random_source.h"
#include "exe/executable.h"
#include "kernels/rounding.h"
#include "runtime/backend.h"

namespace abele::device {

/// The state of the running step that a call can read.
struct CallState {
  const int32_t* frame_of_group = nullptr;
  runtime::ActionContext action;
  int64_t random_base = 0;   // draws of all earlier micro-batches
  int64_t normals_base = 0;  // normal numbers of all earlier micro-batches
  RandomSource* random = nullptr;
  const OwnDraws* own = nullptr;   // one for each generator of the user's program
  kernels::RoundingSeed rounding;  // for this instruction
  torch::jit::Stack stack;         // reused by every call

  /// True in the first micro-batch of a group, which overwrites the sum.
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
};

/// A call that runs fn(CallState&).
template <class Fn>
class FunctionCall final : public Call {
 public:
  explicit FunctionCall(Fn fn) : fn_(std::move(fn)) {}
  void run(CallState& state) override { fn_(state); }

 private:
  Fn fn_;
};

template <class Fn>
std::unique_ptr<Call> callOf(Fn fn) {
  return std::make_unique<FunctionCall<Fn>>(std::move(fn));
}

/// Makes the call of an ATen operator, in the first form that works: written operands in place; a native `out=` kernel
/// that writes the slots; the functional operator with an allocator that returns the slots' memory, and copies for
/// results in other memory. All of them run the kernel that eager PyTorch runs, or one with the same bits. Throws E0106
/// for an operator without a CPU kernel.
std::unique_ptr<Call> makeOperatorCall(const exe::Instruction& instruction, const SlotTable& slots);

/// The call of an operator with a float16 result, which computes in float32 and rounds stochastically. Null for other
/// operators, and for those that draw random numbers.
std::unique_ptr<Call> makeRoundedOperatorCall(const exe::Instruction& instruction, const SlotTable& slots);

}  // namespace abele::device
