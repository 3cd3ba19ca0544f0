#include "capture/node_recorder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include "base/error.h"
#include "capture/arguments.h"
#include "capture/math_bits.h"
#include "capture/outcome.h"
#include "capture/same_program.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

int64_t bytesOf(const torch::jit::Stack& stack) {
  int64_t bytes = 0;
  forEachTensorOf(stack, [&](const at::Tensor& t) { bytes += t.numel() * t.element_size(); });
  return bytes;
}

/// The same without values: tensors on the meta device, of the same types, sizes and strides.
c10::IValue withoutValues(const c10::IValue& value) {
  const auto meta = [](const at::Tensor& tensor) {
    return tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta))
                            : tensor;
  };
  if (value.isTensor()) return meta(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(meta(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(meta(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

/// Whether an operator that failed with `message` also fails with it on the meta device, which has no values. Torch
/// checks types and shapes with the same code there.
bool failsWithoutValues(const c10::OperatorHandle& op, const torch::jit::Stack& operands, std::string_view message) {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  try {
    torch::jit::Stack stack;
    for (const c10::IValue& operand : operands) stack.push_back(withoutValues(operand));
    op.callBoxed(&stack);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace() == message;
  } catch (const std::exception&) {
  }
  return false;
}

}  // namespace

// --- before ----------------------------------------------------------------------------------------------------------

NodeRecorder::Call NodeRecorder::begin(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  table_.sweep();
  const auto& arguments = op.schema().arguments();
  Call call;
  call.op = position_.op_name;
  call.is_view_operator = isViewOperator(op);
  std::string module;
  if (request_.reads_model && !position_.attribution.isBackward()) module = tellReads(op, stack);
  position_.moveHere(producerOf(op, stack), module);
  call.where = position_.where;
  const std::vector<bool> written = writtenArguments(op, call.op, stack);
  call.args.reserve(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i)
    call.args.push_back(argumentOf(arguments[i], argumentAt(op, stack, i), static_cast<int32_t>(i), written[i], call));
  // An operator on the host among those of an accelerator would need a worker on the host.
  if (call.host_operand.defined() && !call.takes_device) requireSupported(call.host_operand, position_);
  for (const PendingWrite& write : call.writes) {
    const Segment* input = table_.inputOf(write.tensor);
    if (input != nullptr && input->kind != ir::InputKind::kArgument) table_.snapshot(write.tensor);
  }
  return call;
}

std::string NodeRecorder::tellReads(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::string module;
  forEachTensorOf(argumentsOf(op, stack), [&](const at::Tensor& tensor) {
    const Segment* input = tensor.has_storage() ? table_.inputOf(tensor) : nullptr;
    if (input == nullptr || (input->kind != ir::InputKind::kParameter && input->kind != ir::InputKind::kBuffer)) return;
    std::string scope = request_.reads_model(input->origin);
    if (module.empty()) module = std::move(scope);
  });
  return module;
}

/// In backward: the node that made the last operand. A sum of gradients gets the block of this node.
const ir::Node* NodeRecorder::producerOf(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  const ir::Node* producer = nullptr;
  if (!position_.attribution.isBackward()) return producer;
  forEachTensorOf(argumentsOf(op, stack), [&](const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    if (const ir::Node* maker = writer_.makerOf(values_.contentsOf(tensor))) producer = maker;
  });
  return producer;
}

Arg NodeRecorder::argumentOf(const c10::Argument& schema, const c10::IValue& value, int32_t index, bool is_written,
                             Call& call) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return Arg::id(ir::kNone);
    // A view of a number needs the number's memory.
    if (!is_written && !call.is_view_operator && tensor.dim() == 0 &&
        tensor.unsafeGetTensorImpl()->is_wrapped_number() && !table_.knows(tensor))
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
  if (value.isStorage() && locks_.holdsVarying(value.toStorage().unsafeGetStorageImpl())) position_.refuseRead();
  std::optional<Arg> arg = plainArg(value);
  ABELE_REQUIRE(arg, E0106,
                {.what = "an operator that cannot be replayed",
                 .at = position_.str(),
                 .found = cat("argument ", schema.name(), " of kind ", value.tagKind()),
                 .expected = "tensors, numbers, strings, lists of them, devices and generators",
                 .remedy = "compute this part before the call and pass its result as an input"});
  return *std::move(arg);
}

int64_t NodeRecorder::operandOf(const at::Tensor& tensor, int32_t index, int32_t element, bool is_written, Call& call) {
  if (is_written) return writtenOperand(tensor, index, element, call);
  if (!call.is_view_operator) values_.adoptContents(tensor);
  const ir::ValueId value = values_.lookUp(tensor);
  if (values_.isHostResult(tensor))
    call.host_operand = tensor;
  else
    call.takes_device = true;
  print(value, tensor);
  call.varies = call.varies || writer_.varies(value);
  call.takes_tensors = true;
  call.takes_floats = call.takes_floats || !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  return value;
}

void NodeRecorder::print(ir::ValueId value, const at::Tensor& contents) {
  if (!request_.prints_contents || writer_.varies(value) || prints_.contains(value)) return;
  const ir::Node* const maker = writer_.makerOf(value);
  if (maker != nullptr && isAllocation(maker->op)) return;  // it was not written yet
  prints_.emplace(value, printOf(contents));
}

/// Two captures would differ in the numbers that new memory holds by chance.
void NodeRecorder::clear(const at::Tensor& fresh) const {
  const c10::Storage& memory = fresh.storage();
  const bool is_compared = request_.prints_contents && memory.device().is_cpu() && memory.nbytes() > 0;
  if (is_compared) std::memset(memory.mutable_data(), 0, memory.nbytes());
}

int64_t NodeRecorder::writtenOperand(const at::Tensor& tensor, int32_t index, int32_t element, Call& call) {
  requireSupported(tensor, position_);
  call.takes_device = true;
  const Place place = values_.placeOf(tensor);
  const ir::ValueId base = place.segment->base;
  ABELE_REQUIRE(!table_.overlapsAnother(tensor, *place.segment), E0106,
                {.what = "a write into memory that several inputs of the model share",
                 .at = position_.str(),
                 .remedy = "clone() one of the overlapping tensors before the call"});
  for (const PendingWrite& other : call.writes)
    ABELE_REQUIRE(other.write.before != base, E0106,
                  {.what = "an operator that writes into the memory of one tensor twice",
                   .at = position_.str(),
                   .remedy = "clone() one of the written tensors, or write them one after the other"});
  Type type = typeOf(tensor);
  ir::Write write{.arg = index, .element = element, .view = type, .offset = place.offset, .before = base};
  print(base, tensor);
  call.writes.push_back(
      {tensor, std::move(type), tensor.storage().unsafeGetStorageImpl(), place.segment->is_input, std::move(write)});
  call.varies = call.varies || writer_.varies(base);
  return base;
}

void NodeRecorder::run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call, const RunOperator& how) {
  const auto start = std::chrono::steady_clock::now();
  int64_t bytes = request_.touched ? bytesOf(*stack) : 0;
  const torch::jit::Stack operands(stack->end() - static_cast<std::ptrdiff_t>(numArguments(op)), stack->end());
  try {
    how ? how(op, stack) : op.callBoxed(stack);
  } catch (const c10::Error& error) {
    noteShapeFailure(failsWithoutValues(op, operands, error.what_without_backtrace()));
    throw;
  }
  noteShapeFailure(false);
  call.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  if (request_.touched) request_.touched(bytes + bytesOf(*stack));
}

// --- after -----------------------------------------------------------------------------------------------------------

bool NodeRecorder::end(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) {
  for (PendingWrite& write : call.writes) resolveResize(write, call);
  // A resize of nothing is the allocation that resolveResize recorded.
  if (isResize(call.op)) return false;
  const ir::NodeId id = writer_.graph().nextNodeId();
  const size_t num_values = writer_.graph().values.size();
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
  if (writer_.graph().values.size() == num_values && !returns.empty()) return false;
  sayType(op, stack, call);
  if (request_.made && is_computed) tellMade(results, stack, call);
  addNode(call, std::move(results), /*is_view=*/!is_computed);
  return true;
}

void NodeRecorder::tellMade(const std::vector<std::vector<ir::ValueId>>& results, const torch::jit::Stack& stack,
                            const Call& call) const {
  for (size_t i = 0; i < results.size(); ++i)
    forEachTensor(stack[stack.size() - results.size() + i], [&](int32_t element, const at::Tensor& tensor) {
      const ir::ValueId value = results[i][std::max(element, 0)];
      if (value != ir::kNone) request_.made(value, tensor);
    });
  for (const PendingWrite& pending : call.writes) request_.made(pending.write.after, pending.tensor);
}

/// torch's default type belongs to the process, and may be another one when the program runs. So an operator that makes
/// a tensor from nothing records its type. Other operators that depend on a default that forward has changed are
/// refused.
void NodeRecorder::sayType(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call) {
  const size_t num_returns = op.schema().returns().size();
  if (num_returns == 0 || call.takes_floats) return;
  const c10::IValue& result = stack[stack.size() - num_returns];
  if (!result.isTensor()) return;
  const at::ScalarType type = result.toTensor().scalar_type();
  const std::optional<int> place = op.schema().argumentIndexWithName("dtype");
  Arg* dtype = place ? &call.args[static_cast<size_t>(*place)] : nullptr;
  if (dtype && dtype->kind != Arg::Kind::kNone) return;
  if (!call.takes_tensors) {
    if (dtype) *dtype = Arg::integer(static_cast<int64_t>(type));
    return;
  }
  const bool is_default = !c10::isIntegralType(type, /*includeBool=*/true);
  ABELE_REQUIRE(!is_default || c10::get_default_dtype() == default_type_, E0106,
                {.what = "an operator on integers whose result has the default type, which forward has changed",
                 .at = position_.str(),
                 .found = cat("torch's default type is ", c10::toString(type), ", and was ",
                              c10::toString(c10::typeMetaToScalarType(default_type_)), " when forward began"),
                 .remedy = "convert an operand to the type before this operator (.to(dtype))"});
}

void NodeRecorder::addNode(Call& call, std::vector<std::vector<ir::ValueId>> results, bool is_view) {
  ir::Node& node = writer_.addNode(std::move(call.op), std::move(call.where));
  node.args = std::move(call.args);
  node.results = std::move(results);
  for (PendingWrite& write : call.writes) node.writes.push_back(std::move(write.write));
  node.is_view = is_view;
  node.random_draws = call.random_draws;
  node.random_offset = call.random_offset;
  node.normals = call.normals;
  node.draws_vary = call.draws_vary;
  node.time_ns = call.time_ns;
  // The batch sizes follow from the lengths alone, which are constant (raw_reads.def).
  if (node.op == "aten::_pack_padded_sequence") writer_.setVaries(node.results[1][0], false);
  // Rows of a constant: each replica has others.
  if (node.op == "abele_op::all_to_all") writer_.setVaries(node.results[0][0], true);
}

void NodeRecorder::resolveResize(PendingWrite& pending, Call& call) {
  const at::Tensor& tensor = pending.tensor;
  if (tensor.storage().unsafeGetStorageImpl() == pending.storage && typeOf(tensor) == pending.type) return;
  // An operator writes the whole of an out= tensor; resize_ leaves new elements unwritten.
  const bool is_own = !pending.is_input && !isResize(call.op);
  ABELE_REQUIRE(
      (pending.type.numel() == 0 || is_own) && tensor.storage().unsafeGetStorageImpl() == pending.storage &&
          tensor.storage_offset() == 0,
      E0106,
      {.what = "an operator that resizes a tensor which has elements",
       .at = position_.str(),
       .found = cat(pending.type.str(), " becomes ", typeOf(tensor).str()),
       .expected = "an out= tensor that forward has made, or one of the final shape",
       .remedy = "let the operator return a new tensor instead of using out=; a buffer that takes its size "
                 "from the first batch, as those of quantisation observers, has it once the module was called "
                 "natively"});
  // The tensor counts as allocated with its final geometry.
  table_.erase(tensor);
  if (isResize(call.op)) clear(tensor);
  Segment& segment = table_.add(tensor);
  const Type type = typeOf(tensor);
  const ir::ValueId base = writer_.addValue(type, writer_.graph().nextNodeId(), /*varies=*/false);
  segment.base = base;
  ir::Node& node = writer_.addNode("aten::empty_strided", call.where);
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

void NodeRecorder::applyWrites(Call& call, ir::NodeId node) {
  for (PendingWrite& pending : call.writes) {
    if (call.varies && table_.isExposed(pending.tensor)) position_.refuseRead();
    Segment& segment = *table_.find(pending.tensor).segment;
    pending.write.after = writer_.addValue(writer_.graph().values[pending.write.before].type, node, call.varies);
    segment.base = pending.write.after;
    segment.views.clear();
    segment.written = true;
  }
}

ir::ValueId NodeRecorder::resultOf(const at::Tensor& tensor, const Call& call, ir::NodeId node, bool* is_computed) {
  requireSupported(tensor, position_, tensor.is_cpu() && call.takes_device ? tensor.device() : position_.device);
  for (const PendingWrite& write : call.writes)
    if (write.storage == tensor.storage().unsafeGetStorageImpl()) return ir::kNone;
  const bool is_new_memory = !table_.knows(tensor) || table_.madeBy(tensor, writer_.graph(), node);
  const Type type = typeOf(tensor);
  if (is_new_memory && !table_.find(tensor)) {
    *is_computed = true;
    ABELE_REQUIRE(mathBits(tensor) == 0, E0106,
                  {.what = "an operator that returns a conjugated or negated view of new memory",
                   .at = position_.str(),
                   .remedy = "let it return the view's values (.resolve_conj(), .resolve_neg())"});
    if (isAllocation(call.op)) clear(tensor);
    // The value has the geometry of the result, gaps included: no other tensor uses the memory in between. (mse_loss,
    // for example, leaves its result in memory that was larger while it worked.)
    const ir::ValueId value = writer_.addValue(type, node, call.varies);
    table_.add(tensor).base = value;
    return value;
  }
  const Place place = values_.placeOf(tensor);
  Segment& segment = *place.segment;
  // A view that an earlier node made remains that node's result; readers find it by its place.
  if (values_.findView(segment, type, place.offset) != ir::kNone) return ir::kNone;
  const ir::ValueId view = writer_.graph().addView(type, node, segment.base, place.offset);
  segment.views.emplace(place.offset, view);
  return view;
}

}  // namespace abele::capture
