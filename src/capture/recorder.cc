#include "capture/recorder.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <unordered_map>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>

#include "base/error.h"
#include "capture/arguments.h"
#include "capture/autograd_bridge.h"
#include "capture/recorder_locks.h"
#include "capture/type_bridge.h"

namespace abele::capture {

struct Recorder::PendingWrite {
  at::Tensor tensor;
  Type type;  // before the operator
  const c10::StorageImpl* storage = nullptr;
  bool is_input = false;
  ir::Write write;
};

/// One operator between before and after.
struct Recorder::Call {
  std::string op;
  std::vector<Arg> args;
  std::vector<PendingWrite> writes;
  Where where;
  bool varies = false;
  int64_t random_draws = ir::kNone;
  int64_t random_offset = ir::kNone;
  int64_t time_ns = 0;
  bool is_view_operator = false;
};

namespace {

struct HiddenWrites {
  int training_arg;
  std::vector<int> args;
};

const HiddenWrites* hiddenWrites(const std::string& op) {
  static const std::unordered_map<std::string, HiddenWrites> table = {
#define ABELE_HIDDEN_WRITES(name, training_arg, ...) {name, {training_arg, {__VA_ARGS__}}},
#include "capture/hidden_writes.def"
#undef ABELE_HIDDEN_WRITES
  };
  auto found = table.find(op);
  return found == table.end() ? nullptr : &found->second;
}

std::string fullName(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : cat(name.name, ".", name.overload_name);
}

/// The n-th argument, while it is on the stack.
const c10::IValue& argumentAt(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t index) {
  return stack[stack.size() - op.schema().arguments().size() + index];
}

bool isResize(const std::string& op) { return op == "aten::resize_" || op == "aten::resize_as_"; }

/// Does it only look at its operands' memory in another way?
bool isViewOperator(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool isWritten(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const HiddenWrites* hidden,
               size_t index) {
  const c10::AliasInfo* alias = op.schema().arguments()[index].alias_info();
  // transpose_ and its kin change what the tensor object looks at, not memory: views. Resizes may do both.
  const bool is_view = op.hasTag(at::Tag::inplace_view) && !isResize(op.operator_name().name);
  if (alias != nullptr && alias->isWrite()) return !is_view;
  if (hidden == nullptr) return false;
  if (hidden->training_arg >= 0 && !argumentAt(op, stack, hidden->training_arg).toBool()) return false;
  return std::find(hidden->args.begin(), hidden->args.end(), static_cast<int>(index)) != hidden->args.end();
}

int generatorArgument(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::TypePtr type = arguments[i].type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::GeneratorType) return static_cast<int>(i);
  }
  return -1;
}

/// Operators that hand a tensor's value to the program.
bool readsValue(const std::string& op) {
  return op == "aten::_local_scalar_dense" || op == "aten::equal" || op == "aten::is_nonzero" || op == "aten::allclose";
}

/// Python-only bookkeeping that computes nothing.
bool isObserverOp(const std::string& op) { return std::string_view(op).substr(0, 10) == "profiler::"; }

/// More 32-bit draws than an operator over so many elements could need.
int64_t drawLimit(const torch::jit::Stack& stack) {
  int64_t elements = 0;
  for (const c10::IValue& value : stack)
    forEachTensor(value, [&](int32_t, const at::Tensor& t) { elements += t.numel(); });
  return 64 * elements + 100000;
}

int64_t bytesOf(const torch::jit::Stack& stack) {
  int64_t bytes = 0;
  for (const c10::IValue& value : stack)
    forEachTensor(value, [&](int32_t, const at::Tensor& t) { bytes += t.numel() * t.element_size(); });
  return bytes;
}

}  // namespace

Recorder*& currentRecorder() {
  thread_local Recorder* current = nullptr;
  return current;
}

Recorder::Recorder(const Request& request)
    : request_(request),
      outer_(request.is_nested ? currentRecorder() : nullptr),
      random_(request.generator),
      table_(request.source_location),
      attribution_(&recording_.graph, request.source_location) {
  graph().training = request.training;
  for (size_t i = 0; i < request.model.size(); ++i) {
    const at::Tensor& tensor = *request.model[i].tensor;
    // What cannot be captured is an error only when the program uses it.
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) continue;
    if (!isKnown(tensor.scalar_type()) || table_.find(tensor)) continue;
    Segment& segment = table_.add(tensor);
    segment.is_input = true;
    segment.kind = request.model[i].is_parameter ? ir::InputKind::kParameter : ir::InputKind::kBuffer;
    segment.origin = static_cast<int32_t>(i);
    updateLock(tensor.storage().unsafeGetStorageImpl());
  }
}

namespace {

/// A copy whose elements lie as the tensor's do, with gaps and with elements that share memory: kernels choose by that.
at::Tensor copyWithGeometry(const at::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    const Type type = typeOf(tensor);
    const at::Tensor memory = tensor.as_strided({type.extent()}, {1}).clone();
    return memory.as_strided(type.sizes, type.strides);
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
}

}  // namespace

std::vector<at::Tensor> Recorder::addArguments() {
  unlockAll();  // an argument may be a value of the program around, or share memory with the model
  for (const at::Tensor& given : request_.arguments) {
    op_name_ = cat("argument ", arguments_.size());
    checkSupported(given);
    // The body of a loop gets other results of the program at every turn.
    arguments_.push_back(request_.is_nested ? given.detach().clone() : copyWithGeometry(given.detach()));
    const auto index = static_cast<int32_t>(arguments_.size()) - 1;
    Segment& segment = table_.add(arguments_.back());
    segment.is_input = true;
    segment.kind = ir::InputKind::kArgument;
    segment.origin = index;
    segment.base = graph().addInput(typeOf(arguments_.back()), ir::InputKind::kArgument, index, cat("x", index));
    setVaries(segment.base, true);
  }
  lockAgain();
  for (const at::Tensor& argument : arguments_) updateLock(argument.storage().unsafeGetStorageImpl());
  return arguments_;
}

// --- operators -------------------------------------------------------------------------------------------------------

void Recorder::onOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (failure_) return op.callBoxed(stack);
  struct Depth {
    int& depth;
    explicit Depth(int& d) : depth(d) { ++depth; }
    ~Depth() { --depth; }
  } depth(depth_);
  Unlocked unlocked(*this, stack, op.schema().arguments().size());
  try {
    record(op, stack);
  } catch (const Error&) {
    fail();
    throw;
  }
  unlocked.close(op.schema().returns().size());
}

void Recorder::record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op_name_ = fullName(op);
  if (isObserverOp(op_name_)) return op.callBoxed(stack);
  stayAtHome(op, stack);
  if (passMetaTensors(op, stack)) return;
  // Torch decomposes composite operators before the mode sees them, except where no tensor asks for autograd.
  if (isComposite(op)) return decompose(op, stack);
  if (count_) averageStatistics(stack);
  if (readsValue(op_name_)) return bakeRead(op, stack);
  if (op_name_ == "aten::_conj" || op_name_ == "aten::_neg_view") return recordLazyView(stack);
  if (recordWithFixedShapes(stack) || recordWithGradMode(stack)) return;
  requireFixedShapes(op, *stack);
  widenOperands(op, stack);
  widenIndices(op, stack);
  const int generator = generatorArgument(op);
  if (generator >= 0) lendGenerator((*stack)[stack->size() - op.schema().arguments().size() + generator]);
  Call call = begin(op, *stack);
  if (generator >= 0 || op.hasTag(at::Tag::nondeterministic_seeded)) return recordRandom(op, stack, call);
  run(op, stack, call);
  end(op, *stack, call);
}

void Recorder::decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  DispatchMode::Resumed resumed(*mode_);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void Recorder::bakeRead(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool may_vary = false;
  for (size_t i = 0; i < op.schema().arguments().size(); ++i)
    forEachTensor(argumentAt(op, *stack, i),
                  [&](int32_t, const at::Tensor& tensor) { may_vary = may_vary || mayVary(tensor); });
  if (op_name_ == "aten::equal" && argumentAt(op, *stack, 0).toTensor().is_same(argumentAt(op, *stack, 1).toTensor()))
    may_vary = false;
  where_ = attribution_.here(nullptr);
  if (may_vary && allowed_reads_ == 0 && !isCertain(stack->back())) {
    if (op_name_ == "aten::equal" && (request_.checks_comparisons || request_.trusts_reads))
      return recordComparison(op, stack);
    if (op_name_ == "aten::_local_scalar_dense" && (request_.trusts_reads || isQuestionOfInputs(stack->back())))
      recordRead(stack->back().toTensor());
    else if (!countsBatches(*stack))
      refuseRead();
  }
  op.callBoxed(stack);
}

/// Random numbers come from the device's stream, where the program does not name another one.
void Recorder::lendGenerator(c10::IValue& generator) {
  const bool is_own =
      generator.isGenerator() && generator.toGenerator().defined() && generator.toGenerator() != random_.generator();
  where_ = attribution_.here(nullptr);
  ABELE_REQUIRE(!is_own, E0106,
                {.what = "random numbers from a generator of the program's own",
                 .at = position(),
                 .found = inLanguage("a torch.Generator, whose state the device does not have",
                                     "an at::Generator, whose state the device does not have"),
                 .expected = "the default generator, which is the device's stream of random numbers",
                 .remedy = cat("leave the generator out and seed the stream (",
                               inLanguage("poptorch.Options().randomSeed", "abele::Options::randomSeed"),
                               "), or draw the numbers before the call and pass them as an input")});
  generator = random_.generator();
}

void Recorder::recordRandom(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call) {
  const int generator = generatorArgument(op);
  const size_t num_arguments = op.schema().arguments().size();
  torch::jit::Stack again;
  if (generator < 0) again.assign(stack->end() - static_cast<int64_t>(num_arguments), stack->end());
  const size_t rest = stack->size() - num_arguments;
  random_.before();
  const int64_t offset = random_.offset();
  run(op, stack, call);
  // A loop of ours may draw any number of times.
  const bool is_ours = op_name_.starts_with("abele_op::");
  const int64_t draws = random_.drawsSince(is_ours ? int64_t{1} << 32 : drawLimit(*stack));
  ABELE_REQUIRE(draws >= 0 && (draws == 0 || offset >= 0), E0106,
                {.what = "a random operator outside the model's random stream",
                 .at = position(),
                 .found = "a generator that was seeded or replaced inside forward",
                 .remedy = cat("seed before the call (",
                               inLanguage("poptorch.Options().randomSeed, torch.manual_seed",
                                          "abele::Options::randomSeed, torch::manual_seed"),
                               "), not in forward")});
  if (generator >= 0 || draws == 0) {
    if (generator >= 0) {
      call.random_draws = draws;
      call.random_offset = std::max<int64_t>(offset, 0);
    }
    call.varies = call.varies || draws > 0;
    if (draws > 0) random_.advance(draws);
    return end(op, *stack, call);
  }
  // No generator in the schema: what the kernel calls inside has one.
  random_.rewind();
  stack->erase(stack->begin() + static_cast<int64_t>(rest), stack->end());
  stack->insert(stack->end(), again.begin(), again.end());
  again.clear();
  const std::string name = op_name_;
  const int64_t before = recorded_draws_;
  decompose(op, stack);
  op_name_ = name;
  ABELE_REQUIRE(recorded_draws_ - before == draws, E0106,
                {.what = "a random operator whose numbers cannot be drawn again",
                 .at = position(),
                 .remedy = inLanguage("use torch.bernoulli, torch.rand_like, torch.randn_like or "
                                      "torch.nn.functional.dropout",
                                      "use torch::bernoulli, torch::rand_like, torch::randn_like or torch::dropout")});
}

Recorder::Call Recorder::begin(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  table_.sweep();
  const auto& arguments = op.schema().arguments();
  const HiddenWrites* hidden = hiddenWrites(op_name_);
  Call call;
  call.op = op_name_;
  call.is_view_operator = isViewOperator(op);
  // Operands first looked up for their producer: the block of sums of gradients is that of the last one.
  const ir::Node* producer = nullptr;
  for (size_t i = 0; i < arguments.size(); ++i) {
    forEachTensor(argumentAt(op, stack, i), [&](int32_t, const at::Tensor& tensor) {
      if (!attribution_.isBackward() || !tensor.has_storage()) return;
      const Place place = table_.find(tensor);
      if (!place || place.segment->base == ir::kNone) return;
      const ir::NodeId def = graph().values[place.segment->base].def;
      if (def != ir::kNone) producer = &graph().nodes[def];
    });
  }
  call.where = where_ = attribution_.here(producer);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = argumentAt(op, stack, i);
    call.args.push_back(
        argumentOf(arguments[i], value, static_cast<int32_t>(i), isWritten(op, stack, hidden, i), call));
  }
  for (const PendingWrite& write : call.writes) {
    const Place place = table_.find(write.tensor);
    if (place.segment->is_input && place.segment->kind != ir::InputKind::kArgument) table_.snapshot(write.tensor);
  }
  return call;
}

Arg Recorder::argumentOf(const c10::Argument& schema, const c10::IValue& value, int32_t index, bool is_written,
                         Call& call) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return Arg::id(ir::kNone);
    if (!is_written && tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number() && !table_.knows(tensor))
      return numberArg(tensor);
    return Arg::id(operandOf(tensor, index, ir::kNone, is_written, call));
  }
  const bool optional_elements = isOptionalTensorList(schema);
  if (!value.isNone() && (optional_elements || isTensorList(schema))) {
    Arg arg = Arg::idList(std::vector<int64_t>(value.toListRef().size(), ir::kNone));
    if (optional_elements) arg.kind = Arg::Kind::kOptionalIdList;
    forEachTensor(value, [&](int32_t element, const at::Tensor& tensor) {
      arg.ints[element] = operandOf(tensor, index, element, is_written, call);
    });
    return arg;
  }
  if (value.isStorage() && holdsVarying(value.toStorage().unsafeGetStorageImpl())) refuseRead();
  std::optional<Arg> arg = plainArg(value);
  ABELE_REQUIRE(arg, E0106,
                {.what = "an operator that cannot be replayed",
                 .at = position(),
                 .found = cat("argument ", schema.name(), " of kind ", value.tagKind()),
                 .expected = "tensors, numbers, strings, lists of them, devices and generators",
                 .remedy = "compute this part before the call and pass its result as an input"});
  return *std::move(arg);
}

int64_t Recorder::operandOf(const at::Tensor& tensor, int32_t index, int32_t element, bool is_written, Call& call) {
  if (!is_written) {
    if (!call.is_view_operator) adoptContents(tensor);
    const ir::ValueId value = lookUp(tensor);
    call.varies = call.varies || varies(value);
    return value;
  }
  const Place place = placeOf(tensor);
  const ir::ValueId base = place.segment->base;
  requireNoLazyCopy(tensor);
  ABELE_REQUIRE(!table_.overlapsAnother(tensor, *place.segment), E0106,
                {.what = "a write into memory that several inputs of the model share",
                 .at = position(),
                 .remedy = "clone() one of the overlapping tensors before the call"});
  for (const PendingWrite& other : call.writes)
    ABELE_REQUIRE(other.write.before != base, E0106,
                  {.what = "an operator that writes twice into the memory of one tensor",
                   .at = position(),
                   .remedy = "clone() one of the written tensors, or write them one after the other"});
  Type type = typeOf(tensor);
  ir::Write write{.arg = index, .element = element, .view = type, .offset = place.offset, .before = base};
  call.writes.push_back(
      {tensor, std::move(type), tensor.storage().unsafeGetStorageImpl(), place.segment->is_input, std::move(write)});
  call.varies = call.varies || varies(base);
  return base;
}

void Recorder::run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call) {
  const auto start = std::chrono::steady_clock::now();
  int64_t bytes = request_.touched ? bytesOf(*stack) : 0;
  op.callBoxed(stack);
  call.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  if (request_.touched) request_.touched(bytes + bytesOf(*stack));
}

void Recorder::end(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) {
  for (PendingWrite& write : call.writes) resolveResize(write, call);
  // A resize of nothing is the allocation that resolveResize recorded.
  if (isResize(call.op)) return;
  const ir::NodeId id = graph().nextNodeId();
  const size_t num_values = graph().values.size();
  applyWrites(call, id);

  const auto& returns = op.schema().returns();
  std::vector<std::vector<ir::ValueId>> results;
  bool is_computed = !call.writes.empty() || returns.empty();  // without either: run for its effect
  for (size_t i = 0; i < returns.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - returns.size() + i];
    auto& ids = results.emplace_back();
    if (value.isTensor()) ids.push_back(ir::kNone);
    if (value.isTensorList()) ids.resize(value.toListRef().size(), ir::kNone);
    forEachTensor(value, [&](int32_t element, const at::Tensor& tensor) {
      ids[std::max(element, 0)] = resultOf(tensor, call, id, &is_computed);
    });
  }
  // It returned what was known already (or plain numbers, which the program has baked in).
  if (graph().values.size() == num_values && !returns.empty()) return;

  if (request_.made && is_computed) {
    for (size_t i = 0; i < results.size(); ++i)
      forEachTensor(stack[stack.size() - returns.size() + i], [&](int32_t element, const at::Tensor& tensor) {
        const ir::ValueId value = results[i][std::max(element, 0)];
        if (value != ir::kNone) request_.made(value, tensor);
      });
    for (const PendingWrite& pending : call.writes) request_.made(pending.write.after, pending.tensor);
  }
  ir::Node& node = addNode(call.op, call.where);
  node.args = std::move(call.args);
  node.results = std::move(results);
  for (PendingWrite& write : call.writes) node.writes.push_back(std::move(write.write));
  node.is_view = !is_computed;
  node.random_draws = call.random_draws;
  node.random_offset = call.random_offset;
  node.time_ns = call.time_ns;
  if (call.random_draws > 0) recorded_draws_ += call.random_draws;
  // The batch sizes follow from the lengths alone, which are constant (raw_reads.def).
  if (node.op == "aten::_pack_padded_sequence") setVaries(node.results[1][0], false);
}

void Recorder::resolveResize(PendingWrite& pending, Call& call) {
  const at::Tensor& tensor = pending.tensor;
  if (tensor.storage().unsafeGetStorageImpl() == pending.storage && typeOf(tensor) == pending.type) return;
  // An out= tensor is written all over; resize_ leaves elements that nobody has written.
  const bool is_own = !pending.is_input && !isResize(call.op);
  ABELE_REQUIRE((pending.type.numel() == 0 || is_own) && tensor.storage().unsafeGetStorageImpl() == pending.storage &&
                    tensor.storage_offset() == 0,
                E0106,
                {.what = "an operator that resizes a tensor which has elements",
                 .at = position(),
                 .found = cat(pending.type.str(), " becomes ", typeOf(tensor).str()),
                 .expected = "an out= tensor that forward has made, or one of the final shape",
                 .remedy = "let the operator return a new tensor instead of using out="});
  // As if it had been allocated with the final geometry.
  table_.erase(tensor);
  Segment& segment = table_.add(tensor);
  const Type type = typeOf(tensor);
  const ir::ValueId base = graph().addValue(type, graph().nextNodeId());
  setVaries(base, false);
  segment.base = base;
  ir::Node& node = addNode("aten::empty_strided", call.where);
  node.args = {Arg::intList(type.sizes),
               Arg::intList(type.strides),
               Arg::integer(static_cast<int64_t>(type.dtype)),
               Arg::none(),
               Arg::none(),
               Arg::none()};
  node.results = {{base}};
  ir::Write& write = pending.write;
  write.view = type;
  write.offset = 0;
  write.before = base;
  Arg& arg = call.args[write.arg];
  (write.element < 0 ? arg.i : arg.ints[write.element]) = base;
}

void Recorder::applyWrites(Call& call, ir::NodeId node) {
  for (PendingWrite& pending : call.writes) {
    if (call.varies && table_.isExposed(pending.tensor)) refuseRead();
    Segment& segment = *table_.find(pending.tensor).segment;
    pending.write.after = graph().addValue(graph().values[pending.write.before].type, node);
    setVaries(pending.write.after, call.varies);
    segment.base = pending.write.after;
    segment.views.clear();
    segment.written = true;
  }
}

ir::ValueId Recorder::resultOf(const at::Tensor& tensor, const Call& call, ir::NodeId node, bool* is_computed) {
  checkSupported(tensor);
  for (const PendingWrite& write : call.writes)
    if (write.storage == tensor.storage().unsafeGetStorageImpl()) return ir::kNone;
  const bool is_new_memory = !table_.knows(tensor) || table_.madeBy(tensor, graph(), node);
  if (is_new_memory && !table_.find(tensor)) {
    *is_computed = true;
    return freshResult(tensor, call, node);
  }
  const Place place = placeOf(tensor);
  Segment& segment = *place.segment;
  const Type type = typeOf(tensor);
  // A view that an earlier node made stays that node's; whoever reads it finds it by its place.
  if (findView(segment, type, place.offset) != ir::kNone) return ir::kNone;
  const ir::ValueId view = graph().addView(type, node, segment.base, place.offset);
  segment.views.emplace(place.offset, view);
  return view;
}

// The value has the result's own geometry, also where it has gaps: what lies between belongs to nobody. (mse_loss, for
// one, leaves its result in memory that was larger while it worked.)
ir::ValueId Recorder::freshResult(const at::Tensor& tensor, const Call& call, ir::NodeId node) {
  Segment& segment = table_.add(tensor);
  segment.base = graph().addValue(typeOf(tensor), node);
  setVaries(segment.base, call.varies);
  return segment.base;
}

}  // namespace abele::capture
