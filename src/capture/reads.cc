#include "capture/reads.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "capture/arguments.h"
#include "capture/outcome.h"

namespace abele::capture {
namespace {

c10::OperatorHandle operatorOfOurs(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

}  // namespace

bool Reads::isRead(const std::string& op) {
  return op == "aten::_local_scalar_dense" || op == "aten::equal" || op == "aten::is_nonzero" || op == "aten::allclose";
}

void Reads::answer(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool may_vary = false;
  forEachTensorOf(argumentsOf(op, *stack),
                  [&](const at::Tensor& tensor) { may_vary = may_vary || values_.mayVary(tensor); });
  const std::string& name = position_.op_name;
  if (name == "aten::equal" && argumentAt(op, *stack, 0).toTensor().is_same(argumentAt(op, *stack, 1).toTensor()))
    may_vary = false;
  position_.moveHere();
  if (may_vary && !areAllowed() && !isCertain(stack->back())) {
    if (name == "aten::equal" && isComparisonChecked(*stack)) return recordComparison(op, stack);
    if (name == "aten::_local_scalar_dense" && !countsBatches(*stack) && isChecked(stack->back().toTensor()))
      recordRead(stack->back().toTensor());
    else if (!count_)
      position_.refuseRead();
  }
  op.callBoxed(stack);
}

at::Tensor Reads::readMemory(const at::Tensor& tensor, const std::string& reader, const DispatchMode& mode) {
  if (!values_.mayVary(tensor)) {
    if (values_.knows(tensor)) table_.expose(tensor);
    return tensor;
  }
  position_.op_name = reader;
  position_.moveHere();
  if (!isChecked(tensor)) position_.refuseRead();
  const DispatchMode::Paused paused(mode);
  const torch::jit::Stack operands = {tensor};
  const Locks::Unlocked unlocked(locks_, operands, operands.size());
  return recordRead(tensor);
}

bool Reads::keepsShapeOf(const at::Tensor& tensor) {
  const bool keeps = isChecked(tensor);
  if (keeps) noteSteered();
  return keeps;
}

/// The program continues with the answer of this micro-batch. The graph checks it in every other micro-batch.
void Reads::recordComparison(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const c10::OperatorHandle require_equal = operatorOfOurs("abele_op::require_equal");
  const at::Tensor x = stack->at(stack->size() - 2).toTensor(), y = stack->back().toTensor();
  op.callBoxed(stack);
  const bool answer = stack->back().toBool();
  noteSteered();
  if (x.sizes() != y.sizes() || (answer && values_.lookUp(x) == values_.lookUp(y))) return;
  torch::jit::Stack arguments = {x, y, answer};
  record_(require_equal, &arguments);
}

const ir::Node* Reads::makerOf(const c10::IValue& read) const {
  return read.isTensor() ? writer_.makerOf(values_.contentsOf(read.toTensor())) : nullptr;
}

/// Whether the program may keep the value that it reads, because each step checks that it has not changed.
bool Reads::isChecked(const at::Tensor& read) {
  return request_.trusts_reads || isWholeQuestion(read) || followsFromIntegers(read);
}

bool Reads::isComparisonChecked(const torch::jit::Stack& stack) {
  const auto is_known = [&](const at::Tensor& tensor) {
    return !values_.mayVary(tensor) || followsFromIntegers(tensor);
  };
  return request_.checks_comparisons || request_.trusts_reads ||
         (is_known(stack.back().toTensor()) && is_known(stack[stack.size() - 2].toTensor()));
}

/// Whether the value is a result of `all` or `any`, or of a count of true elements. Programs read these to check their
/// inputs, or to skip work if nothing is masked, so the answer rarely changes.
bool Reads::isWholeQuestion(const at::Tensor& read) const {
  const ir::Node* question = read.scalar_type() == at::kBool ? makerOf(read) : nullptr;
  if (question == nullptr) return false;
  if (question->op == "aten::all" || question->op == "aten::any") return true;
  if ((question->op != "aten::eq.Scalar" && question->op != "aten::ne.Scalar") || question->args.size() != 2 ||
      question->args[0].kind != Arg::Kind::kId)
    return false;
  const ir::Node* count = writer_.makerOf(static_cast<ir::ValueId>(question->args[0].i));
  if (count == nullptr || count->op != "aten::sum" || count->args[0].kind != Arg::Kind::kId) return false;
  const Type& mask = graph().values[count->args[0].i].type;
  const Arg& number = question->args[1];
  const bool is_integer = number.kind == Arg::Kind::kInt || number.number_kind == Arg::Kind::kInt;
  return mask.dtype == DType::kBool && is_integer && (number.i == 0 || number.i == mask.numel());
}

/// Whether the value follows from integer or boolean arguments and from buffers alone: masks, labels, ids, lengths,
/// sizes, flags. Programs compare counts of words and image pieces, read sizes of images, and read flags of their own
/// state. requireUnwrittenBuffers() refuses buffers that forward also writes.
/// In a loop only booleans are kept, because other arguments of its body differ from one iteration to the next.
bool Reads::followsFromIntegers(const at::Tensor& read) {
  if (request_.is_nested && read.scalar_type() != at::kBool) return false;
  if (inputs_.bufferOf(read) != nullptr) values_.lookUp(read);
  std::unordered_set<ir::ValueId> seen;
  std::vector<ir::ValueId> open = {values_.contentsOf(read)};
  std::vector<int32_t> buffers;
  while (!open.empty()) {
    const ir::ValueId value = open.back();
    open.pop_back();
    if (value == ir::kNone) return false;
    if (!writer_.varies(value) || !seen.insert(value).second) continue;
    const ir::Node* maker = writer_.makerOf(value);
    if (maker == nullptr ? !isIntegerOrBuffer(value, buffers) : maker->isRandom()) return false;
    if (maker != nullptr)
      ir::forEachOperand(*maker, [&](ir::ValueId operand) { open.push_back(graph().baseOf(operand)); });
  }
  for (const int32_t buffer : buffers) kept_buffers_.push_back({buffer, position_.op_name, position_.where});
  return true;
}

bool Reads::isIntegerOrBuffer(ir::ValueId value, std::vector<int32_t>& buffers) const {
  const auto input = std::ranges::find(graph().inputs, value, &ir::Input::value);
  if (input == graph().inputs.end()) return false;
  if (input->kind == ir::InputKind::kBuffer) buffers.push_back(input->external);
  const auto dtype = static_cast<at::ScalarType>(graph().values[value].type.dtype);
  const bool is_integer = at::isIntegralType(dtype, /*includeBool=*/true);
  return input->kind == ir::InputKind::kBuffer || (input->kind == ir::InputKind::kArgument && is_integer);
}

void Reads::requireUnwrittenBuffers() {
  for (const KeptBuffer& kept : kept_buffers_) {
    const bool is_written = std::ranges::any_of(graph().outputs, [&](const ir::Output& output) {
      return output.kind == ir::OutputKind::kUpdate && output.target == kept.external;
    });
    if (!is_written) continue;
    position_.op_name = kept.reader;
    position_.where = kept.where;
    position_.refuseRead();
  }
}

/// Whether a comparison of a uniform random number with a constant has the same answer for all draws. Layers that are
/// dropped with probability 0 make such comparisons.
bool Reads::isCertain(const c10::IValue& read) const {
  const ir::Node* comparison = makerOf(read);
  if (comparison == nullptr || comparison->args.size() != 2 || comparison->args[0].kind != Arg::Kind::kId) return false;
  const ir::Node* draw = writer_.makerOf(static_cast<ir::ValueId>(comparison->args[0].i));
  if (draw == nullptr || draw->op != "aten::uniform_") return false;
  const auto number = [](const Arg& arg) { return arg.kind == Arg::Kind::kInt ? static_cast<double>(arg.i) : arg.d; };
  const double low = number(draw->args[1]), high = number(draw->args[2]), limit = number(comparison->args[1]);
  if (comparison->op == "aten::lt.Scalar" || comparison->op == "aten::ge.Scalar") return limit <= low || limit > high;
  if (comparison->op == "aten::le.Scalar" || comparison->op == "aten::gt.Scalar") return limit < low || limit >= high;
  return false;
}

/// The program continues with the value that it has read. The graph checks that every other micro-batch has the same.
at::Tensor Reads::recordRead(const at::Tensor& tensor) {
  static const c10::OperatorHandle require_same = operatorOfOurs("abele_op::require_same");
  const std::string name = position_.op_name;
  const at::Tensor read = tensor.detach().clone(at::MemoryFormat::Contiguous);
  torch::jit::Stack arguments = {tensor.detach(), read, position_.str()};
  record_(require_same, &arguments);
  position_.op_name = name;
  noteSteered();
  return read;
}

/// Batch normalisation without a momentum reads its counter, and the next operator takes 1 / counter as a number.
bool Reads::countsBatches(const torch::jit::Stack& stack) {
  if (position_.op_name != "aten::_local_scalar_dense") return false;
  const at::Tensor& tensor = stack.back().toTensor();
  if (tensor.scalar_type() != at::kLong) return false;
  const ModelTensor* buffer = inputs_.bufferOf(tensor);
  if (buffer == nullptr || !buffer->name.ends_with("num_batches_tracked")) return false;
  count_ = {tensor, tensor.is_cpu() ? *tensor.const_data_ptr<int64_t>() : tensor.item<int64_t>(), position_.where};
  return true;
}

// The weight of the statistics becomes a value of the device.
void Reads::beforeOperator(torch::jit::Stack* stack) {
  if (!count_) return;
  static const c10::OperatorHandle average = operatorOfOurs("abele_op::average_statistics");
  constexpr size_t kArguments = 8, kMean = 3, kVar = 4, kTraining = 5, kMomentum = 6;
  const auto argument = [&](size_t i) -> c10::IValue& { return (*stack)[stack->size() - kArguments + i]; };
  // Torch reserves memory in between, and keeps the values that a checkpoint computes again.
  if (position_.op_name == "aten::empty.memory_format") return;
  if (position_.op_name == "aten::detach" && position_.attribution.isBackward()) return;
  const double weight = 1.0 / static_cast<double>(count_->value);
  if (position_.op_name != "aten::native_batch_norm" || !argument(kTraining).toBool() ||
      argument(kMomentum).toDouble() != weight || !argument(kMean).isTensor() || !argument(kVar).isTensor())
    return requireNoCount();
  const std::string name = position_.op_name;
  torch::jit::Stack arguments = {argument(0), argument(kMean), argument(kVar), count_->tensor};
  torch::jit::Stack counter = {count_->tensor};  // the others are operands of the operator at hand
  const Locks::Unlocked unlocked(locks_, counter, counter.size());
  count_.reset();
  record_(average, &arguments);
  position_.op_name = name;
  argument(kMean) = argument(kVar) = c10::IValue();
  argument(kMomentum) = 0.0;
}

void Reads::requireNoCount() {
  if (!count_) return;
  position_.where = count_->where;
  position_.op_name = "aten::_local_scalar_dense";
  position_.refuseRead();
}

}  // namespace abele::capture
