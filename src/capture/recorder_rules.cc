// Recorder: operators that are not recorded as they come. Read first: recorder.cc.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/set.h>
#include <c10/core/GradMode.h>

#include "base/error.h"
#include "capture/arguments.h"
#include "capture/linear_layers.h"
#include "capture/recorder.h"
#include "capture/recorder_locks.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

const std::vector<size_t>* shapeOperands(const std::string& op) {
  static const std::unordered_map<std::string, std::vector<size_t>> table = {
#define ABELE_DYNAMIC_SHAPE(name, ...) {name, {__VA_ARGS__}},
#include "capture/dynamic_shapes.def"
#undef ABELE_DYNAMIC_SHAPE
  };
  auto found = table.find(op);
  return found == table.end() ? nullptr : &found->second;
}

const char* fixedShapeForm(const std::string& op) {
  static const std::unordered_map<std::string, const char*> table = {
#define ABELE_FIXED_SHAPE(name, form) {name, form},
#include "capture/fixed_shapes.def"
#undef ABELE_FIXED_SHAPE
  };
  auto found = table.find(op);
  return found == table.end() ? nullptr : found->second;
}

const char* toldGradMode(const std::string& op) {
  static const std::unordered_map<std::string, const char*> table = {
#define ABELE_GRAD_MODE(name, form) {name, form},
#include "capture/grad_modes.def"
#undef ABELE_GRAD_MODE
  };
  auto found = table.find(op);
  return found == table.end() ? nullptr : found->second;
}

enum class Widening { kAll, kFirst, kWeights, kActivation };

const Widening* wideningOf(const std::string& op) {
  static const std::unordered_map<std::string, Widening> table = {
#define ABELE_MIXED_OPERANDS(name, widening) {name, Widening::widening},
#include "capture/mixed_operands.def"
#undef ABELE_MIXED_OPERANDS
  };
  auto found = table.find(op);
  return found == table.end() ? nullptr : &found->second;
}

std::optional<size_t> longIndices(const std::string& op) {
  static const std::unordered_map<std::string, size_t> table = {
#define ABELE_LONG_INDICES(name, operand) {name, operand},
#include "capture/long_indices.def"
#undef ABELE_LONG_INDICES
  };
  auto found = table.find(op);
  return found == table.end() ? std::nullopt : std::optional<size_t>(found->second);
}

bool isFloatingTensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && at::isFloatingType(value.toTensor().scalar_type());
}

const c10::OperatorHandle& materialised(const std::string& view) {
  static const c10::OperatorHandle conj = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_conj_physical", "");
  static const c10::OperatorHandle neg = c10::Dispatcher::singleton().findSchemaOrThrow("aten::neg", "");
  return view == "aten::_conj" ? conj : neg;
}

/// Does the operator take or make a tensor without memory? Forward-mode derivatives ask such tensors for shapes.
bool isOnMetaDevice(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool found = false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    found = found || (stack[i].isDevice() && stack[i].toDevice().is_meta());
    forEachTensor(stack[i], [&](int32_t, const at::Tensor& tensor) { found = found || tensor.is_meta(); });
  }
  return found;
}

}  // namespace

bool isAllocation(const ir::Node& node) {
  return std::string_view(node.op).substr(0, 11) == "aten::empty" || node.op == "aten::new_empty";
}

// No value comes out of a tensor without memory.
bool Recorder::passMetaTensors(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!isOnMetaDevice(op, *stack)) return false;
  op.callBoxed(stack);
  return true;
}

bool Recorder::recordWithFixedShapes(torch::jit::Stack* stack) {
  const char* form = fixedShapeForm(op_name_);
  if (form == nullptr) return false;
  if (op_name_ == "aten::bincount") {
    const at::Tensor& values = (*stack)[stack->size() - 3].toTensor();
    const int64_t count = stack->back().toInt();
    const bool says_shape = count > 0 && (values.numel() == 0 || at::max(values).item<int64_t>() < count);
    if (!says_shape || !mayVary(values)) return false;
  }
  const auto found = c10::Dispatcher::singleton().findSchema({form, ""});
  if (!found) return false;  // a program without the CPU kernels
  record(*found, stack);
  return true;
}

bool Recorder::recordWithGradMode(torch::jit::Stack* stack) {
  const bool mode = c10::GradMode::is_enabled();
  const char* form = mode == request_.training ? nullptr : toldGradMode(op_name_);
  if (form == nullptr) return false;
  const auto found = c10::Dispatcher::singleton().findSchema({form, ""});
  if (!found) return false;  // a program without the CPU kernels
  stack->emplace_back(mode);
  record(*found, stack);
  return true;
}

// "ipu", the name that programs know the device of a captured tensor by, is this process.
void Recorder::stayAtHome(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i)
    if ((*stack)[i].isDevice() && (*stack)[i].toDevice().type() == c10::DeviceType::IPU)
      (*stack)[i] = c10::Device(c10::DeviceType::CPU);
}

void Recorder::widenOperands(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Widening* widening = wideningOf(op_name_);
  if (widening == nullptr) return;
  if (*widening == Widening::kWeights) return widenWeights(op, stack);
  const size_t first = stack->size() - op.schema().arguments().size();
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

void Recorder::widenWeights(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto named = [&](const char* name) -> c10::IValue* {
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].name() == name) return &(*stack)[stack->size() - arguments.size() + i];
    return nullptr;
  };
  const c10::IValue* statistics = named("running_mean");
  if (statistics == nullptr || !isFloatingTensor(*statistics)) return;
  const at::ScalarType type = statistics->toTensor().scalar_type();
  for (const char* name : {"weight", "bias"}) {
    c10::IValue* weight = named(name);
    if (weight == nullptr || !isFloatingTensor(*weight) || weight->toTensor().scalar_type() == type) continue;
    if (c10::promoteTypes(weight->toTensor().scalar_type(), type) == type) cast(*weight, type);
  }
}

void Recorder::widenIndices(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::optional<size_t> operand = longIndices(op_name_);
  if (!operand) return;
  c10::IValue& indices = (*stack)[stack->size() - op.schema().arguments().size() + *operand];
  if (indices.isTensor() && indices.toTensor().defined() && indices.toTensor().scalar_type() == at::kInt)
    cast(indices, at::kLong);
}

/// Replaces a tensor on the stack by one of another type, as an operator of its own.
void Recorder::cast(c10::IValue& tensor, at::ScalarType type) {
  static const c10::OperatorHandle to_copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
  const std::string name = op_name_;
  const c10::IValue none;
  torch::jit::Stack arguments = {tensor, type, none, none, none, false, none};
  record(to_copy, &arguments);
  tensor = std::move(arguments.back());
  op_name_ = name;
}

// What the program would have to be captured anew for: shapes are part of a graph.
void Recorder::requireFixedShapes(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return;
  const size_t num_arguments = op.schema().arguments().size();
  const auto argument = [&](size_t i) -> const c10::IValue& { return stack[stack.size() - num_arguments + i]; };
  if (op_name_ == "aten::repeat_interleave.Tensor" && !argument(1).isNone()) return;
  bool may_vary = false;
  const auto look = [&](int32_t, const at::Tensor& tensor) {
    const bool decides =
        op_name_ != "aten::index.Tensor" || tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
    may_vary = may_vary || (decides && mayVary(tensor));
  };
  if (const std::vector<size_t>* operands = shapeOperands(op_name_))
    for (const size_t i : *operands) forEachTensor(argument(i), look);
  else
    for (size_t i = 0; i < num_arguments; ++i) forEachTensor(argument(i), look);
  if (!may_vary) return;
  where_ = attribution_.here(nullptr);
  throwUser(ErrorCode::E0101,
            {.what = "an operator whose result has another shape for other values",
             .at = position(),
             .found = "a value that depends on the inputs, the weights or random numbers",
             .expected = "shapes that are the same for every input",
             .remedy = cat("keep all elements and mask them (", inLanguage("torch.where", "torch::where"),
                           ", multiplication by the mask), or compute this part before the call")});
}

// Lazy conjugates and negatives are computed at once: a view in the graph is geometry and nothing else. What eager
// would see through the view when either side is written later is refused then.
void Recorder::recordLazyView(torch::jit::Stack* stack) {
  const at::Tensor source = stack->back().toTensor();
  record(materialised(op_name_), stack);
  lazy_copies_.push_back(
      {source.storage().getWeakStorageImpl(), stack->back().toTensor().storage().getWeakStorageImpl()});
}

void Recorder::requireNoLazyCopy(const at::Tensor& written) {
  if (lazy_copies_.empty()) return;
  std::erase_if(lazy_copies_, [](const auto& pair) { return pair.first.expired() || pair.second.expired(); });
  const c10::StorageImpl* storage = written.storage().unsafeGetStorageImpl();
  const bool is_shared = std::any_of(lazy_copies_.begin(), lazy_copies_.end(), [&](const auto& pair) {
    return pair.first._unsafe_get_target() == storage || pair.second._unsafe_get_target() == storage;
  });
  ABELE_REQUIRE(!is_shared, E0106,
                {.what = "a write into a tensor of which a conjugated or negated view is in use",
                 .at = position(),
                 .remedy = cat("use ", inLanguage("torch.conj_physical", "torch::conj_physical"),
                               ", or clone() the tensor before it is written")});
}

// ATen makes tensors of lists by filling new memory behind the dispatcher's back (at::tensor). Whoever reads memory
// that no operator wrote reads what lies there now.
void Recorder::adoptContents(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const Place place = table_.find(tensor);
  if (!place || place.segment->is_input || place.segment->written) return;
  Segment& segment = *place.segment;
  const ir::Value made = graph().values[segment.base];
  if (made.def == ir::kNone || !isAllocation(graph().nodes[made.def]) || made.type.numel() == 0) return;
  at::Tensor whole = at::empty({0}, at::TensorOptions().dtype(static_cast<at::ScalarType>(made.type.dtype)));
  whole.set_(tensor.storage(), segment.begin / elementBytes(made.type.dtype), made.type.sizes, made.type.strides);
  if (at::has_internal_overlap(whole) == at::MemOverlap::Yes) return;  // copy_ could not fill it
  const at::Tensor contents = whole.clone(at::MemoryFormat::Contiguous);
  addConstant(contents, cat("constant/", where_.source.empty() ? op_name_ : where_.source));
  const ir::ValueId from = table_.find(contents).segment->base;

  Segment& filled = *table_.find(tensor).segment;
  const ir::ValueId before = filled.base;
  const ir::ValueId after = graph().addValue(made.type, graph().nextNodeId());
  setVaries(after, false);
  ir::Node& node = addNode("aten::copy_", where_);
  node.args = {Arg::id(before), Arg::id(from), Arg::boolean(false)};
  node.results = {{ir::kNone}};
  node.writes = {{.arg = 0, .view = made.type, .before = before, .after = after}};
  filled.base = after;
  filled.views.clear();
  filled.written = true;
}

}  // namespace abele::capture
