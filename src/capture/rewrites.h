// Operators that are not recorded as the program calls them (dynamic_shapes.def, fixed_shapes.def, float32_only.def,
// grad_modes.def, mixed_operands.def, long_indices.def). Used by recorder.cc.
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

  /// Replaces "ipu", the name of a captured tensor's device in programs, by the device of the capture.
  static void keepOnDevice(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device);
  /// Whether the operator takes or makes a tensor on the meta device. Forward-mode derivatives use such tensors only
  /// for shapes.
  static bool isOnMetaDevice(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// The gradient of prod checks whether its input has zeros. This function answers no and records the formula as one
  /// operator, which checks the values of each micro-batch. Returns false if the operator is not such a check.
  bool answerProdGradient(torch::jit::Stack* stack) const;
  /// Whether the program uses tensors of chosen elements (masked_select) only for sums of what they choose. Such a sum
  /// is then one operator, so that the shape in between may differ.
  void sumChosen(bool sums) { sums_chosen_ = sums; }
  /// Records another operator in place of this one. Returns false if this one is recorded as it is.
  bool recordAnother(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Throws E0101 for an operator whose result's shape depends on values that may differ. keeps: returns whether the
  /// program may keep the shape that follows from this tensor.
  void requireFixedShapes(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                          c10::function_ref<bool(const at::Tensor&)> keeps);
  /// Converts an operator's operands to types that it supports.
  void widen(const c10::OperatorHandle& op, torch::jit::Stack* stack);

 private:
  bool recordWithMathBits(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool recordProdGradient(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool recordSumOfChosen(const c10::OperatorHandle& op, torch::jit::Stack* stack);
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
  bool permutes_groups_ = false;  // the channels of the operator being recorded are already permuted
  at::Tensor product_, factors_;  // operands of the gradient of prod that is being recorded
  bool sums_chosen_ = false;
  std::vector<at::Tensor> chosen_;  // operands of the sum, and the last result on the way to it
  Position& position_;
  const Values& values_;
  Locks& locks_;
  const RunOperator record_;
  // Results that were cast back, and the tensors before the cast, which have other memory.
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, at::Tensor>> before_casts_;
};

}  // namespace abele::capture
