// Recorder: values that the program reads and that may differ in the next micro-batch, where something better than
// E0101 can be done.
#include <algorithm>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "capture/recorder.h"
#include "capture/recorder_locks.h"

namespace abele::capture {
namespace {

c10::OperatorHandle operatorOfOurs(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

}  // namespace

/// The program goes on with this micro-batch's answer, and the graph checks it in every other.
void Recorder::recordComparison(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const c10::OperatorHandle require_equal = operatorOfOurs("abele_op::require_equal");
  const at::Tensor x = stack->at(stack->size() - 2).toTensor(), y = stack->back().toTensor();
  op.callBoxed(stack);
  const bool answer = stack->back().toBool();
  if (x.sizes() != y.sizes() || (answer && lookUp(x) == lookUp(y))) return;
  torch::jit::Stack arguments = {x, y, answer};
  record(require_equal, &arguments);
}

const ir::Node* Recorder::makerOf(ir::ValueId value) {
  const ir::NodeId def = value == ir::kNone ? ir::kNone : graph().values[graph().baseOf(value)].def;
  return def == ir::kNone ? nullptr : &graph().nodes[def];
}
ir::ValueId Recorder::contentsOf(const c10::IValue& read) {
  const Place place = read.isTensor() ? table_.find(read.toTensor()) : Place();
  return place ? place.segment->base : ir::kNone;
}

/// Is it the answer to `all` or `any`, or to a question about masks, labels or ids alone? Programs that ask so check
/// their inputs, or choose a shorter way where nothing is masked: the answer rarely changes, and each step makes sure
/// that it has not.
bool Recorder::isQuestionOfInputs(const c10::IValue& read) {
  if (!read.isTensor() || read.toTensor().scalar_type() != at::kBool) return false;
  const ir::ValueId answer = contentsOf(read);
  const ir::Node* question = makerOf(answer);
  if (question == nullptr) return false;
  if (question->op == "aten::all" || question->op == "aten::any") return true;
  std::unordered_set<ir::ValueId> seen;
  std::vector<ir::ValueId> open = {answer};
  while (!open.empty()) {
    const ir::ValueId value = open.back();
    open.pop_back();
    if (!varies(value) || !seen.insert(value).second) continue;
    const auto dtype = static_cast<at::ScalarType>(graph().values[value].type.dtype);
    const ir::Node* maker = makerOf(value);
    if (!at::isIntegralType(dtype, /*includeBool=*/true) || (maker != nullptr && maker->random_draws > 0)) return false;
    if (maker != nullptr)
      ir::forEachOperand(*maker, [&](ir::ValueId operand) { open.push_back(graph().baseOf(operand)); });
    else if (!isArgument(value))
      return false;
  }
  return true;
}

bool Recorder::isArgument(ir::ValueId value) {
  return std::ranges::any_of(graph().inputs, [&](const ir::Input& input) {
    return input.value == value && input.kind == ir::InputKind::kArgument;
  });
}

/// Has the comparison of a uniform random number with a plain number the same answer for all draws? Layers that are
/// dropped with probability 0 ask so.
bool Recorder::isCertain(const c10::IValue& read) {
  const ir::Node* comparison = makerOf(contentsOf(read));
  if (comparison == nullptr || comparison->args.size() != 2 || comparison->args[0].kind != Arg::Kind::kId) return false;
  const ir::Node* draw = makerOf(static_cast<ir::ValueId>(comparison->args[0].i));
  if (draw == nullptr || draw->op != "aten::uniform_") return false;
  const auto number = [](const Arg& arg) { return arg.kind == Arg::Kind::kInt ? static_cast<double>(arg.i) : arg.d; };
  const double low = number(draw->args[1]), high = number(draw->args[2]), limit = number(comparison->args[1]);
  if (comparison->op == "aten::lt.Scalar" || comparison->op == "aten::ge.Scalar") return limit <= low || limit > high;
  if (comparison->op == "aten::le.Scalar" || comparison->op == "aten::gt.Scalar") return limit < low || limit >= high;
  return false;
}

/// The program goes on with what it has read, and the graph checks that every other micro-batch has the same.
at::Tensor Recorder::recordRead(const at::Tensor& tensor) {
  static const c10::OperatorHandle require_same = operatorOfOurs("abele_op::require_same");
  const std::string name = op_name_;
  const at::Tensor read = tensor.detach().clone(at::MemoryFormat::Contiguous);
  torch::jit::Stack arguments = {tensor.detach(), read, position()};
  record(require_same, &arguments);
  op_name_ = name;
  return read;
}

/// Batch normalisation without a momentum reads its counter, and the next operator takes 1 / counter as a number.
bool Recorder::countsBatches(const torch::jit::Stack& stack) {
  if (op_name_ != "aten::_local_scalar_dense") return false;
  const at::Tensor& tensor = stack.back().toTensor();
  if (tensor.scalar_type() != at::kLong) return false;
  const Place place = table_.find(tensor);
  if (!place || !place.segment->is_input || place.segment->kind != ir::InputKind::kBuffer) return false;
  if (!request_.model[place.segment->origin].name.ends_with("num_batches_tracked")) return false;
  count_ = {tensor, *tensor.const_data_ptr<int64_t>(), where_};
  return true;
}

/// Before the operator after a counter was read: the weight of its statistics becomes a value of the device.
void Recorder::averageStatistics(torch::jit::Stack* stack) {
  static const c10::OperatorHandle average = operatorOfOurs("abele_op::average_statistics");
  constexpr size_t kArguments = 8, kMean = 3, kVar = 4, kTraining = 5, kMomentum = 6;
  const auto argument = [&](size_t i) -> c10::IValue& { return (*stack)[stack->size() - kArguments + i]; };
  if (op_name_ == "aten::empty.memory_format") return;  // memory that torch reserves in between
  const double weight = 1.0 / static_cast<double>(count_->value);
  if (op_name_ != "aten::native_batch_norm" || !argument(kTraining).toBool() ||
      argument(kMomentum).toDouble() != weight || !argument(kMean).isTensor() || !argument(kVar).isTensor())
    return requireNoCount();
  const std::string name = op_name_;
  torch::jit::Stack arguments = {argument(0), argument(kMean), argument(kVar), count_->tensor};
  torch::jit::Stack counter = {count_->tensor};  // the others are operands of the operator at hand
  const Unlocked unlocked(*this, &counter, counter.size());
  count_.reset();
  record(average, &arguments);
  op_name_ = name;
  argument(kMean) = argument(kVar) = c10::IValue();
  argument(kMomentum) = 0.0;
}

/// E0101 where the last value that was read is a counter.
void Recorder::requireNoCount() {
  if (!count_) return;
  where_ = count_->where;
  op_name_ = "aten::_local_scalar_dense";
  refuseRead();
}

}  // namespace abele::capture
