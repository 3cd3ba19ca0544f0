// Operators that are not recorded as they come (dynamic_shapes.def, fixed_shapes.def, float32_only.def, grad_modes.def,
// mixed_operands.def, long_indices.def). Used by recorder.cc.
#pragma once

#include <utility>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "capture/boxed_call.h"
#include "capture/locks.h"
#include "capture/values.h"

namespace abele::capture {

/// Threads: one at a time, as Recorder.
class Rewrites {
 public:
  /// record: records one more operator, as if the program had called it.
  /// strides_groups: as Request::strides_groups.
  Rewrites(bool training, bool strides_groups, Position* position, const Values* values, Locks* locks,
           RunOperator record)
      : training_(training),
        strides_groups_(strides_groups),
        position_(*position),
        values_(*values),
        locks_(*locks),
        record_(std::move(record)) {}

  /// "ipu", the name that programs know the device of a captured tensor by, is this process.
  static void keepOnDevice(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device);
  /// Does the operator take or make a tensor without memory? Forward-mode derivatives ask such tensors for shapes, and
  /// no value comes out of them.
  static bool isOnMetaDevice(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// The gradient of prod asks whether its input has zeros. The answer here is no, and its formula is recorded as one
  /// operator, which asks the values of each micro-batch. Returns whether it did.
  bool answerProdGradient(torch::jit::Stack* stack) const;
  /// Records another operator in the place of one that is not recorded itself. Returns whether it did.
  bool recordAnother(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Throws E0101 for an operator whose result has another shape for other values. keeps: may the program keep the
  /// shape that follows from this tensor?
  void requireFixedShapes(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                          c10::function_ref<bool(const at::Tensor&)> keeps);
  /// Gives an operator operands of the types that it takes.
  void widen(const c10::OperatorHandle& op, torch::jit::Stack* stack);

 private:
  bool recordWithMathBits(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool recordProdGradient(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool recordWithFixedShapes(torch::jit::Stack* stack);
  bool recordIfThere(const char* form, torch::jit::Stack* stack);
  bool recordWithGradMode(torch::jit::Stack* stack);
  bool recordInFloat32(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void measureAgain(const c10::OperatorHandle& backward, torch::jit::Stack* stack);
  bool recordWithStridedGroups(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void permuteChannels(c10::IValue& tensor, size_t dim, int64_t rows);
  bool recordWithWiderStatistics(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void widenOperands(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void widenWeights(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void widenIndices(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void cast(c10::IValue& tensor, at::ScalarType type);
  void keepBeforeCast(const at::Tensor& result, const at::Tensor& before);
  const at::Tensor* beforeCast(const at::Tensor& result) const;

  const bool training_;
  const bool strides_groups_;
  bool permutes_groups_ = false;  // the operator that is recorded has its channels permuted already
  at::Tensor product_, factors_;  // operands of the gradient of prod that is being recorded
  Position& position_;
  const Values& values_;
  Locks& locks_;
  const RunOperator record_;
  // Results that were cast back, and what they were before; the casts' memory is their own.
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, at::Tensor>> before_casts_;
};

}  // namespace abele::capture
