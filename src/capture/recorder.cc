#include "capture/recorder.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include <ATen/SavedTensorHooks.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/ScopeExit.h>

#include "base/error.h"
#include "capture/annotate.h"
#include "capture/arguments.h"
#include "capture/math_bits.h"
#include "capture/stride_readers.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

/// Python-only bookkeeping that computes nothing.
bool isObserverOp(const std::string& op) { return op.starts_with("profiler::"); }

}  // namespace

Recorder*& currentRecorder() {
  thread_local Recorder* current = nullptr;
  return current;
}

Recorder::Recorder(const Request& request)
    : request_(request),
      outer_(request.is_nested ? currentRecorder() : nullptr),
      attribution_(&recording_.graph, request.source_location, request.earlier ? &request.earlier->graph : nullptr),
      position_(&attribution_, request.device),
      writer_(&recording_.graph, request.attributes_nodes),
      inputs_(request, &recording_, &table_, &writer_, outer_ ? &outer_->values_ : nullptr),
      values_(&position_, &table_, &writer_, &inputs_, outer_ ? &outer_->values_ : nullptr),
      locks_(&table_, &writer_, outer_ ? &outer_->locks_ : nullptr),
      nodes_(request, &position_, &table_, &writer_, &values_, &locks_, &recording_.prints),
      draws_(request, &position_, &nodes_, [this](const auto& op, auto* stack) { decompose(op, stack); }),
      reads_(request, &position_, &table_, &writer_, &values_, &inputs_, &locks_,
             [this](const auto& op, auto* stack) { record(op, stack); }),
      rewrites_(request.training, request.strides_groups, &position_, &values_, &locks_,
                [this](const auto& op, auto* stack) { record(op, stack); }) {
  recording_.graph.training = request.training;
  for (size_t i = 0; i < request.model.size(); ++i) {
    const at::Tensor& tensor = *request.model[i].tensor;
    if (!tensor.defined() || !tensor.has_storage() || !table_.knows(tensor)) continue;
    memory_.add(tensor, static_cast<int32_t>(i));
    locks_.update(tensor.storage().unsafeGetStorageImpl());
  }
}

std::vector<at::Tensor> Recorder::addArguments() {
  locks_.unlockAll();  // an argument may be a value of the program around, or share memory with the model
  for (const at::Tensor& given : request_.arguments) {
    position_.op_name = cat("argument ", inputs_.arguments().size());
    const bool is_copied = given.defined() && (given.is_cpu() || given.device().type() == position_.device.type());
    requireSupported(given, position_, is_copied ? given.device() : position_.device);
    inputs_.addArgument(given);
  }
  locks_.lockAgain();
  for (const at::Tensor& argument : inputs_.arguments()) locks_.update(argument.storage().unsafeGetStorageImpl());
  return inputs_.arguments();
}

// --- operators -------------------------------------------------------------------------------------------------------

void Recorder::onOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (failure_) return op.callBoxed(stack);
  if (draws_.tryOut(op, stack)) return;
  ++depth_;
  const auto left = c10::make_scope_exit([this] { --depth_; });
  Locks::Unlocked unlocked(locks_, *stack, numArguments(op));
  keepingErrors([&] { record(op, stack); });
  unlocked.close(op.schema().returns().size());
}

void Recorder::record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  position_.op_name = fullName(op);
  if (isObserverOp(position_.op_name)) return op.callBoxed(stack);
  saves_by_hooks_ = saves_by_hooks_ || at::SavedTensorDefaultHooks::get_hooks(/*ignore_is_tracing=*/true).has_value();
  Rewrites::keepOnDevice(op, stack, position_.device);
  if (Rewrites::isOnMetaDevice(op, *stack)) return op.callBoxed(stack);
  // Torch decomposes composite operators before the mode sees them, except where no tensor asks for autograd.
  if (isComposite(op)) return decompose(op, stack);
  if (rewrites_.answerProdGradient(stack)) return;
  reads_.beforeOperator(stack);
  if (Reads::isRead(position_.op_name)) return reads_.answer(op, stack);
  if (rewrites_.recordAnother(op, stack)) return;
  if (looksElsewhere(op, *stack)) return callUnlocked(op, stack);
  rewrites_.requireFixedShapes(op, *stack, [this](const at::Tensor& tensor) { return reads_.keepsShapeOf(tensor); });
  rewrites_.widen(op, stack);
  const bool may_draw = Draws::mayDraw(op);
  if (may_draw) draws_.lendGenerator(op, stack);
  NodeRecorder::Call call = nodes_.begin(op, *stack);
  if (may_draw) return draws_.record(op, stack, call);
  nodes_.run(op, stack, call);
  nodes_.end(op, *stack, call);
}

/// Whether the operator makes a tensor without elements refer to other memory. Operators that use the tensor then find
/// the value in that memory. CUDA's RNNs do so to find out whether their weights are one piece of memory.
bool Recorder::looksElsewhere(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  if (!position_.op_name.starts_with("aten::set_.source_Storage")) return false;
  const c10::IValue& self = argumentAt(op, stack, 0);
  return self.isTensor() && self.toTensor().defined() && self.toTensor().numel() == 0;
}

/// Unlocks all memory, because such an operator also reads the memory of a storage that it gets without a tensor.
void Recorder::callUnlocked(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  locks_.unlockAll();
  const auto called = c10::make_scope_exit([this] { locks_.lockAgain(); });
  op.callBoxed(stack);
}

/// Records the operators that this one calls, in its place.
void Recorder::decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  DispatchMode::Resumed resumed(*mode_);
  op.redispatchBoxed(c10::DispatchKeySet(c10::computeDispatchKey(at::kFloat, at::kStrided, position_.device)), stack);
}

// --- between operators -----------------------------------------------------------------------------------------------

ir::ValueId Recorder::valueOf(const at::Tensor& tensor) {
  const DispatchMode::Paused paused(*mode_);
  position_.op_name = "result";
  position_.moveHere();
  if (tensor.defined() && tensor.has_storage()) values_.adoptContents(tensor);
  return values_.lookUp(tensor);
}

void Recorder::replaceBuffer(const at::Tensor& buffer, const at::Tensor& value, bool keeps_strides) {
  if (failure_) return;
  const at::Tensor contents = [&] {
    const at::Tensor plain = resolved(value);
    const DispatchMode::Paused paused(*mode_);
    return distinctPart(plain, buffer);
  }();
  ir::ValueId now = valueOf(contents);
  replacements_.push_back({buffer, value, now == ir::kNone ? now : graph().baseOf(now), keeps_strides});
  Where where = position_.where;
  const ir::Node* maker = writer_.makerOf(now);
  if (maker == nullptr && now != ir::kNone && graph().values[now].def != ir::kNone)
    maker = &graph().nodes[graph().values[now].def];  // a view of an input
  if (maker != nullptr) {
    where.direction = maker->direction;
    where.block = maker->block;
    where.scope = maker->scope;
    where.source = maker->source;
  } else if (where.block == ir::kNone && !graph().blocks.empty()) {
    where.block = 0;
  }
  const ir::ValueId base = values_.placeOf(buffer).segment->base;
  // A view of the buffer itself would be read while it is overwritten.
  if (now != ir::kNone && now != base && graph().baseOf(now) == base) now = writer_.addClone(now, where);
  inputs_.replace(buffer, now, where);
}

void Recorder::replaceBuffersAgain() {
  for (const Replacement& each : std::exchange(replacements_, {})) {
    if (failure_) return;
    const ir::ValueId now = valueOf(resolved(each.value));
    if (now != ir::kNone && graph().baseOf(now) != each.contents)
      replaceBuffer(each.buffer, each.value, each.keeps_strides);
    else
      replacements_.push_back(each);
  }
}

ir::ValueId Recorder::firstValueOf(const at::Tensor& buffer) {
  const Segment* segment = table_.inputOf(buffer);
  if (segment == nullptr || segment->external == ir::kNone) return ir::kNone;
  const auto input = std::ranges::find_if(graph().inputs, [&](const ir::Input& each) {
    return each.kind == ir::InputKind::kBuffer && each.external == segment->external;
  });
  return input == graph().inputs.end() ? ir::kNone : input->value;
}

void Recorder::requireKeptStrides() {
  for (const Replacement& each : replacements_) {
    if (!each.keeps_strides) continue;
    const ir::Node* reader = firstReaderOfStrides(graph(), firstValueOf(each.buffer));
    if (reader == nullptr) continue;
    const ModelTensor* own = inputs_.bufferOf(each.buffer);
    throwUser(ErrorCode::E0108,
              {.what = cat("forward replaced ", own ? own->name : "a buffer",
                           " by a tensor with other strides, which the next micro-batch of the call would read"),
               .at = cat(reader->op, reader->source.empty() ? "" : ", ", reader->source, ", depends on its strides"),
               .found = cat(typeOf(each.buffer).str(), " becomes ", typeOf(each.value).str()),
               .expected = "the strides of the buffer, because kernels round in another order with others",
               .remedy = "replace it by new.contiguous(), or call the module natively before its first call "
                         "here, so that the buffer has the strides"});
  }
}

bool Recorder::isReadAfterWrite(const at::Tensor& read, const at::Tensor& written) {
  const ir::ValueId from = firstValueOf(read), into = firstValueOf(written);
  bool is_written = false;
  for (const ir::Node& node : graph().nodes) {
    bool reads = false, reads_other_elements = false;
    ir::forEachOperand(node, [&](ir::ValueId v) {
      if (v == ir::kNone || graph().baseOf(v) != from) return;
      const ir::Value& value = graph().values[v];
      reads = true;
      for (const ir::Write& write : node.writes)
        reads_other_elements = reads_other_elements || value.offset != write.offset || value.type != write.view;
    });
    if (is_written && reads) return true;
    for (const ir::Write& write : node.writes) is_written = is_written || graph().baseOf(write.before) == into;
    if (is_written && reads_other_elements) return true;
  }
  return false;
}

int32_t Recorder::externalOf(const ModelTensor& tensor) {
  position_.op_name = tensor.name;
  return values_.placeOf(*tensor.tensor).segment->external;
}

void Recorder::markLoss(const at::Tensor& loss, int64_t summed_rows) {
  if (!request_.training || attribution_.isBackward() || failure_) return;
  keepingErrors([&] {
    const Losses::Unwrapped own = Losses::unwrapped(loss);
    const ir::ValueId value = valueOf(resolved(own.tensor));
    if (own.is_differentiated) return losses_.passOver(value, position_.where.source);
    losses_.mark(own.tensor, value, position_.where.source, summed_rows);
  });
}

at::Tensor Recorder::readMemory(const at::Tensor& tensor, const std::string& reader) {
  if (failure_ || reads_.areAllowed()) return tensor;
  return keepingErrors([&] { return reads_.readMemory(tensor, reader, *mode_); });
}

void Recorder::requireKnownMemory(c10::ArrayRef<const c10::IValue> operands) {
  if (failure_) return;
  forEachTensorOf(operands, [&](const at::Tensor& tensor) {
    if (failure_ || !tensor.has_storage() || table_.knows(tensor)) return;
    const std::optional<int32_t> shared = memory_.sharedBy(tensor);
    if (!shared) return;
    position_.moveHere();
    try {
      throwUser(ErrorCode::E0101,
                {.what = cat("forward uses memory of ", request_.model[*shared].name, " past the tensor itself"),
                 .at = position_.where.source,
                 .found = inLanguage("a tensor made of a pointer that was taken of it (torch::from_blob)"),
                 .expected = "the model's own parameters and buffers, whose values change from call to call",
                 .remedy = "use the tensor of the model, or copy the array if it must not change"});
    } catch (const Error&) {
      fail();
    }
  });
}

// --- errors and the end ----------------------------------------------------------------------------------------------

/// Keeps the first error. Later operators are not recorded, and may read all memory.
void Recorder::fail() {
  if (!failure_) failure_ = std::current_exception();
  locks_.release();
}

void Recorder::rethrowFailure() {
  if (failure_) std::rethrow_exception(failure_);
}

void Recorder::rethrowLockedRead(const std::exception& error) {
  rethrowFailure();
  if (std::strstr(error.what(), kLockedRead) == nullptr) return;
  position_.op_name = cat("memory read after ", position_.op_name);
  position_.refuseRead();
}

Recorder::HeldResults Recorder::heldResults() {
  std::unordered_set<const c10::StorageImpl*> ours;
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& each : tensors)
      if (each.defined() && each.has_storage()) ours.insert(each.storage().unsafeGetStorageImpl());
  };
  add(recording_.results);
  add(recording_.host_results);
  for (const Replacement& each : replacements_) add({each.value});
  std::ranges::for_each(recording_.gradients, add);
  // Backward inside backward, as of a reentrant checkpoint, leaves gradients on arguments that require them.
  for (const at::Tensor& each : inputs_.arguments()) add({each.grad()});
  HeldResults held;
  for (const auto& [storage, value] : table_.aliveResults(ours)) {
    const ir::Node* maker = writer_.varies(value) ? writer_.makerOf(value) : nullptr;
    if (maker != nullptr) held.emplace(maker, storage);
  }
  return held;
}

void Recorder::noteHeldResult() {
  if (request_.is_nested) return;
  losses_.release();
  HeldResults held = heldResults();
  if (!held.empty() && request_.free_garbage) {
    request_.free_garbage();
    held = heldResults();
  }
  if (held.empty()) return;
  std::set<std::string> lines;
  std::string& text = recording_.held_result;
  for (const auto& [maker, storage] : held) {
    const std::string name = request_.name_of ? request_.name_of(storage) : std::string();
    if (!name.empty() && lines.insert(maker->source).second)
      text += cat(text.empty() ? "" : ", and at ", maker->source, " (", name, ")");
  }
  if (text.empty()) text = held.rbegin()->first->source;
}

Recording Recorder::finish() {
  reads_.requireNoCount();
  requireKeptStrides();
  inputs_.recordWrites();
  reads_.requireUnwrittenBuffers();
  noteHeldResult();
  draws_.finish(recording_);
  if (request_.prints_contents) recording_.varies = writer_.allVarying();
  return std::move(recording_);
}

}  // namespace abele::capture
