#include "capture/rewrites.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <c10/core/GradMode.h>

#include "base/error.h"
#include "capture/arguments.h"
#include "capture/autograd_bridge.h"
#include "capture/linear_layers.h"
#include "capture/math_bits.h"

namespace abele::capture {
namespace {

template <class Row>
using Table = std::unordered_map<std::string, Row>;  // by the operator's name

const Table<std::vector<size_t>> kShapeOperands = {
#define ABELE_DYNAMIC_SHAPE(name, ...) {name, {__VA_ARGS__}},
#include "capture/dynamic_shapes.def"
#undef ABELE_DYNAMIC_SHAPE
};
const Table<const char*> kFixedShapeForms = {
#define ABELE_FIXED_SHAPE(name, form) {name, form},
#include "capture/fixed_shapes.def"
#undef ABELE_FIXED_SHAPE
};
const Table<const char*> kToldGradMode = {
#define ABELE_GRAD_MODE(name, form) {name, form},
#include "capture/grad_modes.def"
#undef ABELE_GRAD_MODE
};
enum class Widening { kAll, kFirst, kWeights, kActivation };
const Table<Widening> kWidenings = {
#define ABELE_MIXED_OPERANDS(name, widening) {name, Widening::widening},
#include "capture/mixed_operands.def"
#undef ABELE_MIXED_OPERANDS
};
const Table<size_t> kLongIndices = {
#define ABELE_LONG_INDICES(name, operand) {name, operand},
#include "capture/long_indices.def"
#undef ABELE_LONG_INDICES
};
enum class Float32Only { kPlain, kKeepsResult, kTakesResult, kTakesDistances };
const Table<Float32Only> kFloat32Only = {
#define ABELE_FLOAT32_ONLY(name, kind) {name, Float32Only::kind},
#include "capture/float32_only.def"
#undef ABELE_FLOAT32_ONLY
};

/// The row of an operator, or null.
template <class Row>
const Row* rowOf(const Table<Row>& table, const std::string& op) {
  const auto found = table.find(op);
  return found == table.end() ? nullptr : &found->second;
}

bool isFloatingTensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && at::isFloatingType(value.toTensor().scalar_type());
}

/// Whether the tensor's type is narrower, so that `type` has every value of it.
bool isNarrower(const c10::IValue& tensor, at::ScalarType type) {
  if (!isFloatingTensor(tensor)) return false;
  const at::ScalarType own = tensor.toTensor().scalar_type();
  return own != type && c10::promoteTypes(own, type) == type;
}

}  // namespace

void Rewrites::keepOnDevice(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device) {
  const size_t first = stack->size() - numArguments(op);
  bool takes_tensors = false;
  for (size_t i = first; i < stack->size(); ++i) {
    forEachTensor((*stack)[i], [&](int32_t, const at::Tensor&) { takes_tensors = true; });
    if (!(*stack)[i].isDevice()) continue;
    const c10::DeviceType type = (*stack)[i].toDevice().type();
    if (type == c10::DeviceType::IPU || (type == c10::DeviceType::CPU && !device.is_cpu())) (*stack)[i] = device;
  }
  if (device.is_cpu() || takes_tensors) return;
  const std::optional<int> named = op.schema().argumentIndexWithName("device");
  if (named && (*stack)[first + static_cast<size_t>(*named)].isNone())
    (*stack)[first + static_cast<size_t>(*named)] = device;
}

bool Rewrites::isOnMetaDevice(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::ArrayRef<c10::IValue> arguments = argumentsOf(op, stack);
  bool found = std::ranges::any_of(
      arguments, [](const c10::IValue& value) { return value.isDevice() && value.toDevice().is_meta(); });
  forEachTensorOf(arguments, [&](const at::Tensor& tensor) { found = found || tensor.is_meta(); });
  return found;
}

// --- another operator in its place -----------------------------------------------------------------------------------

bool Rewrites::recordAnother(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  return recordWithMathBits(op, stack) || recordProdGradient(op, stack) || recordSumOfChosen(op, stack) ||
         recordInFloat32(op, stack) || recordWithWiderStatistics(op, stack) || recordWithStridedGroups(op, stack) ||
         recordWithFixedShapes(stack) || recordWithGradMode(stack);
}

// Values of the graph have no conjugate and negative bits. For most operators torch's dispatcher first computes
// operands without them. An operator that reads the bits itself is recorded in a form that gets them as an argument.
bool Rewrites::recordWithMathBits(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (isViewOperator(op) || op.hasTag(at::Tag::inplace_view)) return false;
  const size_t first = stack->size() - numArguments(op);
  int64_t bits = 0;
  for (size_t i = 0; i < numArguments(op); ++i)
    if ((*stack)[first + i].isTensor()) bits |= mathBits((*stack)[first + i].toTensor()) << (2 * i);
  if (bits == 0) return false;
  const std::string& name = op.operator_name().name;
  const auto form = c10::Dispatcher::singleton().findSchema(
      {cat("abele_math_bits", name.substr(name.find("::"))), op.operator_name().overload_name});
  ABELE_REQUIRE(form && name.starts_with("aten::"), E0106,
                {.what = "an operator that handles conjugated or negated views itself",
                 .at = position_.str(),
                 .expected = "an operator of PyTorch, or one that leaves such views to PyTorch's dispatcher",
                 .remedy = "call resolve_conj() and resolve_neg() on its operands"});
  std::vector<c10::IValue> written;  // what it returns
  for (size_t i = 0; i < numArguments(op); ++i) {
    c10::IValue& operand = (*stack)[first + i];
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back(operand);
    if (operand.isTensor()) operand = withoutMathBits(operand.toTensor());
  }
  stack->emplace_back(bits);
  record_(*form, stack);
  std::ranges::copy(written, stack->end() - static_cast<std::ptrdiff_t>(written.size()));
  return true;
}

namespace {

bool isInProdGradient() { return !c10::GradMode::is_enabled() && currentFunctionName().starts_with("ProdBackward"); }

}  // namespace

bool Rewrites::answerProdGradient(torch::jit::Stack* stack) const {
  const bool finds = position_.op_name == "aten::nonzero", reads = position_.op_name == "aten::_local_scalar_dense";
  if ((!finds && !reads) || !isInProdGradient()) return false;
  const at::Tensor zeros = stack->back().toTensor();
  stack->back() = finds ? c10::IValue(at::empty({0, zeros.dim()}, zeros.options().dtype(at::kLong))) : c10::IValue(0);
  return true;
}

// grad * (product / factors).conj(), where no factor is zero.
bool Rewrites::recordProdGradient(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool divides = position_.op_name == "aten::div.Tensor", ends = position_.op_name == "aten::mul.Tensor";
  if ((!divides && !(ends && product_.defined())) || !isInProdGradient()) return false;
  if (divides) {
    product_ = argumentAt(op, *stack, 0).toTensor();
    factors_ = argumentAt(op, *stack, 1).toTensor();
    return false;
  }
  stack->back() = std::exchange(factors_, {});
  stack->emplace_back(std::exchange(product_, {}));
  const Locks::Unlocked unlocked(locks_, *stack, 3);
  record_(c10::Dispatcher::singleton().findSchemaOrThrow("abele_torch::prod_backward", ""), stack);
  return true;
}

// weight.gather(0, index.masked_select(mask)).sum(). Accelerators have no such operator: a selection would wait for the
// device, and a sum with zeros for the rest would have other roundings.
bool Rewrites::recordSumOfChosen(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!sums_chosen_) return false;
  const auto operand = [&](size_t i) { return argumentAt(op, *stack, i).toTensor(); };
  if (position_.op_name == "aten::masked_select" && operand(1).is_cpu() && values_.mayVary(operand(1))) {
    chosen_ = {operand(0), operand(1)};
  } else if (position_.op_name == "aten::gather" && !chosen_.empty() && operand(2).is_same(chosen_.back())) {
    chosen_.back() = operand(0);
  } else {
    if (position_.op_name != "aten::sum" || chosen_.empty() || !operand(0).is_same(chosen_.back())) return false;
    chosen_.pop_back();
    stack->resize(stack->size() - numArguments(op));
    stack->insert(stack->end(), chosen_.begin(), chosen_.end());
    const Locks::Unlocked unlocked(locks_, *stack, chosen_.size());
    record_(c10::Dispatcher::singleton().findSchemaOrThrow("abele_torch::sum_of_chosen", ""), stack);
    chosen_.clear();
    return true;
  }
  op.callBoxed(stack);
  chosen_.push_back(stack->back().toTensor());
  return true;
}

bool Rewrites::recordWithFixedShapes(torch::jit::Stack* stack) {
  const char* const* form = rowOf(kFixedShapeForms, position_.op_name);
  if (form == nullptr) return false;
  if (position_.op_name == "aten::bincount") {
    const at::Tensor& values = (*stack)[stack->size() - 3].toTensor();
    const int64_t count = stack->back().toInt();
    const bool says_shape = count > 0 && (values.numel() == 0 || at::max(values).item<int64_t>() < count);
    if (!says_shape || !values_.mayVary(values)) return false;
  }
  return recordIfThere(*form, stack);
}

bool Rewrites::recordIfThere(const char* form, torch::jit::Stack* stack) {
  const auto found = c10::Dispatcher::singleton().findSchema({form, ""});
  if (found) record_(*found, stack);  // a program without the CPU kernels has none
  return found.has_value();
}

bool Rewrites::recordWithGradMode(torch::jit::Stack* stack) {
  const bool mode = c10::GradMode::is_enabled();
  const char* const* form = mode == training_ ? nullptr : rowOf(kToldGradMode, position_.op_name);
  if (form == nullptr) return false;
  stack->emplace_back(mode);
  if (recordIfThere(*form, stack)) return true;
  stack->pop_back();
  return false;
}

bool Rewrites::recordInFloat32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Float32Only* kind = rowOf(kFloat32Only, position_.op_name);
  if (kind == nullptr || !position_.device.is_cpu()) return false;
  std::optional<at::ScalarType> type;
  bool is_narrow = false;
  for (size_t i = stack->size() - numArguments(op); i < stack->size(); ++i) {
    c10::IValue& operand = (*stack)[i];
    if (!isFloatingTensor(operand)) continue;
    const at::ScalarType own = operand.toTensor().scalar_type();
    if (!type) type = own;
    if (!at::isReducedFloatingType(own)) continue;
    is_narrow = true;
    const at::Tensor* before = *kind == Float32Only::kTakesResult ? beforeCast(operand.toTensor()) : nullptr;
    if (before != nullptr)
      operand = *before;
    else
      cast(operand, at::kFloat);
  }
  if (!is_narrow) return false;
  if (*kind == Float32Only::kTakesDistances) measureAgain(op, stack);
  record_(op, stack);
  if (!at::isReducedFloatingType(*type)) return true;
  c10::IValue& result = (*stack)[stack->size() - op.schema().returns().size()];
  const at::Tensor before = result.toTensor();
  cast(result, *type);
  if (*kind == Float32Only::kKeepsResult) keepBeforeCast(result.toTensor(), before);
  return true;
}

// If the norm is the maximum, backward compares distances with differences of rows. After rounding they would no longer
// be equal.
void Rewrites::measureAgain(const c10::OperatorHandle& backward, torch::jit::Stack* stack) {
  static const c10::OperatorHandle forward = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_cdist_forward", "");
  const auto argument = [&](size_t i) -> c10::IValue& { return argumentAt(backward, *stack, i); };
  constexpr int64_t kByRows = 2;  // not by a matrix product, which has another backward
  torch::jit::Stack arguments = {argument(1), argument(2), argument(3), kByRows};
  record_(forward, &arguments);
  argument(4) = arguments.back();
}

// The operator also writes the statistics. So it writes copies in the input's type, which are then copied back.
bool Rewrites::recordWithWiderStatistics(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (position_.op_name != "aten::native_batch_norm") return false;
  static const c10::OperatorHandle copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  const at::ScalarType type = argumentAt(op, *stack, 0).toTensor().scalar_type();
  const bool trains = argumentAt(op, *stack, 5).toBool();
  std::vector<std::pair<c10::IValue, c10::IValue>> written;  // the statistics, and their copies
  bool is_mixed = false;
  for (const size_t i : {1, 2, 3, 4}) {  // weight, bias, running mean and variance
    c10::IValue& operand = argumentAt(op, *stack, i);
    if (!isNarrower(operand, type)) continue;
    const c10::IValue own = operand;
    cast(operand, type);
    is_mixed = true;
    if (trains && i > 2) written.emplace_back(own, operand);
  }
  if (!is_mixed) return false;
  record_(op, stack);
  for (const auto& [statistics, copied] : written) {
    torch::jit::Stack arguments = {statistics, copied, false};
    record_(copy, &arguments);
  }
  return true;
}

// --- operands of other types -----------------------------------------------------------------------------------------

void Rewrites::widen(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  widenOperands(op, stack);
  widenIndices(op, stack);
}

void Rewrites::widenOperands(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Widening* widening = rowOf(kWidenings, position_.op_name);
  if (widening == nullptr) return;
  if (*widening == Widening::kWeights) return widenWeights(op, stack);
  const size_t first = stack->size() - numArguments(op);
  std::optional<at::ScalarType> type, widest;
  bool is_mixed = false;
  for (size_t i = first; i < stack->size(); ++i) {
    if (!isFloatingTensor((*stack)[i])) continue;
    const at::ScalarType own = (*stack)[i].toTensor().scalar_type();
    if (!type) type = own;
    is_mixed = is_mixed || own != *type;
    widest = widest ? c10::promoteTypes(*widest, own) : own;
  }
  if (!is_mixed || (*widening == Widening::kFirst && type != widest)) return;
  if (!linearTypes().empty())
    type = linearTypes().back();
  else if (*widening != Widening::kActivation)
    type = widest;
  for (size_t i = first; i < stack->size(); ++i)
    if (isFloatingTensor((*stack)[i]) && (*stack)[i].toTensor().scalar_type() != type) cast((*stack)[i], *type);
}

void Rewrites::widenWeights(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto named = [&](const char* name) -> c10::IValue* {
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].name() == name) return &argumentAt(op, *stack, i);
    return nullptr;
  };
  const at::ScalarType input = named("input")->toTensor().scalar_type();
  for (const char* name : {"weight", "running_mean", "running_var"})
    if (c10::IValue* operand = named(name); operand != nullptr && isNarrower(*operand, input)) cast(*operand, input);
  const c10::IValue* statistics = named("running_mean");
  if (statistics == nullptr || !isFloatingTensor(*statistics)) return;
  const at::ScalarType type = statistics->toTensor().scalar_type();
  for (const char* name : {"weight", "bias"}) {
    c10::IValue* weight = named(name);
    if (weight != nullptr && isNarrower(*weight, type)) cast(*weight, type);
  }
}

void Rewrites::widenIndices(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t* operand = rowOf(kLongIndices, position_.op_name);
  if (operand == nullptr) return;
  c10::IValue& indices = argumentAt(op, *stack, *operand);
  if (indices.isTensor() && indices.toTensor().defined() && indices.toTensor().scalar_type() == at::kInt)
    cast(indices, at::kLong);
}

/// Replaces a tensor on the stack by one of another type, as an operator of its own.
void Rewrites::cast(c10::IValue& tensor, at::ScalarType type) {
  static const c10::OperatorHandle to_copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  const std::string name = position_.op_name;
  const c10::IValue none;
  torch::jit::Stack arguments = {tensor, type, none, none, none, false, none};
  record_(to_copy, &arguments);
  tensor = std::move(arguments.back());
  position_.op_name = name;
}

void Rewrites::keepBeforeCast(const at::Tensor& result, const at::Tensor& before) {
  std::erase_if(before_casts_, [](const auto& kept) { return kept.first.expired(); });
  before_casts_.emplace_back(result.storage().getWeakStorageImpl(), before);
}

const at::Tensor* Rewrites::beforeCast(const at::Tensor& result) const {
  for (const auto& [storage, before] : before_casts_)
    if (!storage.expired() && storage._unsafe_get_target() == result.storage().unsafeGetStorageImpl() &&
        result.sizes() == before.sizes())
      return &before;
  return nullptr;
}

// --- shapes ----------------------------------------------------------------------------------------------------------

// Refuses results whose shape depends on values: shapes are part of a graph, so another one needs another capture.
void Rewrites::requireFixedShapes(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                  c10::function_ref<bool(const at::Tensor&)> keeps) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return;
  const c10::ArrayRef<c10::IValue> arguments = argumentsOf(op, stack);
  if (position_.op_name == "aten::repeat_interleave.Tensor" && !arguments[1].isNone()) return;
  bool may_vary = false;
  const auto look = [&](const at::Tensor& tensor) {
    const bool decides = position_.op_name != "aten::index.Tensor" || tensor.scalar_type() == at::kBool ||
                         tensor.scalar_type() == at::kByte;
    may_vary = may_vary || (decides && values_.mayVary(tensor) && !keeps(tensor));
  };
  if (const std::vector<size_t>* operands = rowOf(kShapeOperands, position_.op_name))
    for (const size_t i : *operands) forEachTensorOf(arguments.slice(i, 1), look);
  else
    forEachTensorOf(arguments, look);
  if (!may_vary) return;
  position_.moveHere();
  throwUser(ErrorCode::E0101,
            {.what = "an operator whose result has another shape for other values",
             .at = position_.str(),
             .found = "a value that depends on the inputs, the weights or random numbers",
             .expected = "shapes that are the same for every input",
             .remedy = inLanguage("keep all elements and mask them (torch::where, multiplication by the mask), or "
                                  "compute this part before the call; where the shape is the same in every step, "
                                  "abele::Options::trustReads(true) checks that it is")});
}

}  // namespace abele::capture
