// Recorder: values of tensors, inputs, losses and the end of a recording. Operators: recorder.cc.
#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

#include "base/error.h"
#include "capture/recorder.h"
#include "capture/recorder_locks.h"
#include "capture/thread_watch.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

/// The type of the memory that belongs to an input: its own, or its flat extent when it has gaps or overlaps.
Type memoryType(const at::Tensor& tensor) {
  Type type = typeOf(tensor);
  return tensor.is_non_overlapping_and_dense() ? type : contiguousType(type.dtype, {type.extent()});
}

/// The line of a constant's name.
std::string sourceOf(const std::string& constant) { return constant.substr(constant.find('/') + 1); }

at::Tensor memoryCopy(const at::Tensor& tensor) {
  const Type type = memoryType(tensor);
  return tensor.detach().as_strided(type.sizes, type.strides, tensor.storage_offset()).clone();
}

}  // namespace

// --- values ----------------------------------------------------------------------------------------------------------

void Recorder::checkSupported(const at::Tensor& tensor) const {
  const bool is_strided = tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage();
  std::string found;
  if (tensor.defined() && tensor.is_nested())
    found = "a nested tensor";
  else if (!is_strided)
    found = tensor.defined() ? cat("layout ", static_cast<int>(tensor.layout())) : "an undefined tensor";
  else if (!tensor.device().is_cpu())
    found = cat("device ", tensor.device().str());
  else if (tensor.key_set().has(c10::DispatchKey::Python) || tensor.unsafeGetTensorImpl()->is_python_dispatch())
    found = "a tensor subclass with its own dispatch";
  else if (tensor.is_conj() || tensor.is_neg())
    found = "a lazily conjugated or negated tensor";
  else if (tensor.storage().nbytes() < at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                                        tensor.itemsize(),
                                                                        static_cast<size_t>(tensor.storage_offset())))
    found = cat("memory of ", tensor.storage().nbytes(), " bytes, too little for ", typeOf(tensor).str());
  else if (!isKnown(tensor.scalar_type()))
    found = cat("element type ", c10::toString(tensor.scalar_type()));
  ABELE_REQUIRE(found.empty(), E0105,
                {.what = "a tensor that cannot be captured",
                 .at = position(),
                 .found = std::move(found),
                 .expected = "a dense, strided CPU tensor of an element type that Abele knows",
                 .remedy = "convert it (.to_dense(), .cpu(), .to(dtype), .resolve_conj()) before this operator"});
}

Place Recorder::placeOf(const at::Tensor& tensor) {
  checkSupported(tensor);
  Place place = table_.find(tensor);
  if (!place) {
    ABELE_REQUIRE(table_.isFromOutside(tensor), E0105,
                  {.what = "a tensor that reaches beyond the one whose memory it shares",
                   .at = position(),
                   .found = typeOf(tensor).str(),
                   .remedy = "clone() the tensor before this operator"});
    ABELE_REQUIRE(!ThreadWatch::isMadeElsewhere(tensor), E0101,
                  {.what = "another thread computed with the model's weights while forward was captured, and forward "
                           "uses the result",
                   .at = position(),
                   .found = typeOf(tensor).str(),
                   .expected = "operators on the thread that runs forward",
                   .remedy = "compute it on the thread that calls forward"});
    addConstant(tensor, cat("constant/", where_.source.empty() ? op_name_ : where_.source));
    place = table_.find(tensor);
  }
  if (place.segment->base == ir::kNone) materialise(*place.segment);
  return place;
}

void Recorder::materialise(Segment& segment) {
  const ModelTensor& source = request_.model[segment.origin];
  segment.external = static_cast<int32_t>(graph().externals.size());
  graph().externals.push_back(
      {.name = source.name,
       .kind = segment.kind,
       .type = memoryType(*source.tensor),
       .trainable = request_.training && source.is_parameter && source.tensor->requires_grad()});
  recording_.constants.emplace_back();
  segment.base = graph().addInput(memoryType(*source.tensor), segment.kind, segment.external, source.name);
  setVaries(segment.base, true);
}

at::Tensor Recorder::memoryOf(const at::Tensor& tensor) {
  const Segment& segment = *placeOf(tensor).segment;
  const Type& type = graph().values[segment.base].type;
  at::Tensor memory = at::empty({0}, at::TensorOptions().dtype(static_cast<at::ScalarType>(type.dtype)));
  return memory.set_(tensor.storage(), segment.begin / elementBytes(type.dtype), type.sizes, type.strides);
}

void Recorder::addConstant(const at::Tensor& given, const std::string& name) {
  // A nested program knows memory as the program around it does: two tensors that share some are views of one value.
  const at::Tensor tensor = outer_ != nullptr ? outer_->memoryOf(given) : given;
  Segment& segment = table_.add(tensor);
  segment.is_input = true;
  segment.external = static_cast<int32_t>(graph().externals.size());
  const Type type = memoryType(tensor);
  graph().externals.push_back({.name = name, .kind = ir::InputKind::kConstant, .type = type});
  constants_.emplace_back(tensor.storage().getWeakStorageImpl(), segment.external);
  // A copy: the program may write into its tensor later.
  recording_.constants.push_back(memoryCopy(tensor));
  if (request_.is_nested) {
    recording_.constant_sources.resize(recording_.constants.size());
    recording_.constant_sources.back() = tensor;
  }
  segment.base = graph().addInput(type, ir::InputKind::kConstant, segment.external, name);
  setVaries(segment.base, outer_ != nullptr && outer_->mayVary(tensor));
}

std::optional<std::string> Recorder::constantOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const Place place = table_.find(tensor);
  if (!place || !place.segment->is_input || place.segment->kind != ir::InputKind::kConstant) return std::nullopt;
  return sourceOf(graph().externals[place.segment->external].name);
}

bool Recorder::mayVary(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const Place place = table_.find(tensor);
  if (!place) return outer_ != nullptr && outer_->mayVary(tensor);
  return place.segment->base == ir::kNone || varies(place.segment->base);
}

at::Tensor Recorder::readMemory(const at::Tensor& tensor, const std::string& reader) {
  if (failure_ || allowed_reads_ > 0) return tensor;
  if (!mayVary(tensor)) {
    if (knows(tensor)) table_.expose(tensor);
    return tensor;
  }
  op_name_ = reader;
  where_ = attribution_.here(nullptr);
  try {
    if (!request_.trusts_reads) refuseRead();
    const DispatchMode::Paused paused(*mode_);
    torch::jit::Stack operands = {tensor};
    Unlocked unlocked(*this, &operands, operands.size());
    return recordRead(tensor);
  } catch (const Error&) {
    fail();
    throw;
  }
}

void Recorder::refuseRead() const {
  throwUser(ErrorCode::E0101,
            {.what = "forward reads a tensor's value while it is being captured",
             .at = position(),
             .found = "a value that depends on the inputs, the weights or random numbers",
             .expected = "control flow that is the same for every input",
             .remedy = cat("keep the value in a tensor (", inLanguage("torch.where", "torch::where"),
                           ", masks, tensor indices), or compute it before the call and pass it as a number; where "
                           "forward only checks its inputs, ",
                           inLanguage("poptorch.Options().trustReads(True)", "abele::Options::trustReads(true)"),
                           " checks them in every step")});
}

ir::ValueId Recorder::findView(const Segment& segment, const Type& type, int64_t offset) const {
  auto matches = [&](ir::ValueId v) { return graph().values[v].offset == offset && graph().values[v].type == type; };
  if (matches(segment.base)) return segment.base;
  const auto [begin, end] = segment.views.equal_range(offset);
  const auto found = std::find_if(begin, end, [&](const auto& view) { return matches(view.second); });
  return found == end ? ir::kNone : found->second;
}

ir::ValueId Recorder::lookUp(const at::Tensor& tensor) {
  const Place place = placeOf(tensor);
  Segment& segment = *place.segment;
  const Type type = typeOf(tensor);
  const ir::ValueId known = findView(segment, type, place.offset);
  if (known != ir::kNone) return known;
  const ir::ValueId view = graph().addView(type, graph().nextNodeId(), segment.base, place.offset);
  segment.views.emplace(place.offset, view);
  const bool same_dtype = graph().values[segment.base].type.dtype == type.dtype;
  ir::Node& node = addNode(same_dtype ? "aten::as_strided" : "aten::view.dtype", where_);
  node.args = {Arg::id(segment.base)};
  if (same_dtype) {
    node.args.push_back(Arg::intList(type.sizes));
    node.args.push_back(Arg::intList(type.strides));
    node.args.push_back(Arg::integer(place.offset));
  } else {
    node.args.push_back(Arg::integer(static_cast<int64_t>(type.dtype)));
  }
  node.results = {{view}};
  node.is_view = true;
  return view;
}

ir::ValueId Recorder::valueOf(const at::Tensor& tensor) {
  const DispatchMode::Paused paused(*mode_);
  op_name_ = "result";
  where_ = attribution_.here(nullptr);
  if (tensor.defined() && tensor.has_storage()) adoptContents(tensor);
  return lookUp(tensor);
}

bool Recorder::isExternal(const at::Tensor& tensor) {
  const Place place = table_.find(tensor);
  return place && place.segment->is_input;
}

ir::Node& Recorder::addNode(const std::string& op, const Where& where) {
  ir::Node& node = graph().addNode(op);
  node.direction = where.direction;
  node.block = where.block;
  if (request_.attributes_nodes && where.direction == ir::Direction::kBackward) node.forward = where.forward;
  node.scope = where.scope;
  node.source = where.source;
  return node;
}

void Recorder::setVaries(ir::ValueId value, bool varies) {
  if (varies_.size() <= static_cast<size_t>(value)) varies_.resize(value + 1, false);
  varies_[value] = varies;
}

std::string Recorder::position() const { return where_.source.empty() ? op_name_ : cat(op_name_, ", ", where_.source); }

// --- losses ----------------------------------------------------------------------------------------------------------

bool Recorder::isSumOver(const at::Tensor& loss, double rows) const {
  return !losses_.empty() && losses_.back().summed_rows > 0 && losses_.back().tensor.is_same(loss) &&
         rows == static_cast<double>(losses_.back().summed_rows);
}

void Recorder::markLoss(const at::Tensor& loss, int64_t summed_rows) {
  if (!request_.training || attribution_.isBackward() || failure_) return;
  try {
    losses_.push_back({loss, valueOf(loss), where_.source, summed_rows});
  } catch (const Error&) {
    fail();
    throw;
  }
}

std::pair<at::Tensor, ir::ValueId> Recorder::findLoss() const {
  std::vector<const LossMark*> marks;
  for (const LossMark& mark : losses_) {
    auto same = std::find_if(marks.begin(), marks.end(), [&](const LossMark* m) { return m->value == mark.value; });
    if (same == marks.end()) marks.push_back(&mark);
  }
  ABELE_REQUIRE(!marks.empty(), E0102,
                {.what = "a training model marks no loss",
                 .expected = cat("one loss in forward: a loss function of torch, or ",
                                 inLanguage("poptorch.identity_loss", "abele::identityLoss")),
                 .remedy = cat("return ",
                               inLanguage("poptorch.identity_loss(loss, reduction=\"none\")",
                                          "abele::identityLoss(loss, abele::Reduction::kNone)"),
                               " from forward")});
  std::vector<const LossMark*> left;
  for (const LossMark* mark : marks) {
    const bool feeds_another = std::any_of(marks.begin(), marks.end(), [&](const LossMark* other) {
      return other != mark && ir::reaches(graph(), mark->value, other->value);
    });
    if (!feeds_another) left.push_back(mark);
  }
  std::string found = cat(left.size(), " losses");
  for (const LossMark* mark : left) found += cat(", ", mark->source.empty() ? "at an unknown line" : mark->source);
  ABELE_REQUIRE(
      left.size() == 1, E0103,
      {.what = "Multiple independent losses found in graph",
       .found = found,
       .expected = "one",
       .remedy = cat("combine them: ", inLanguage("poptorch.identity_loss(loss_a + loss_b, reduction=\"none\")",
                                                  "abele::identityLoss(loss_a + loss_b, "
                                                  "abele::Reduction::kNone)"))});
  return {left.front()->tensor, left.front()->value};
}

// --- the end ---------------------------------------------------------------------------------------------------------

int32_t Recorder::externalOf(const ModelTensor& tensor) {
  op_name_ = tensor.name;
  const Place place = placeOf(*tensor.tensor);
  return place.segment->external;
}

void Recorder::rethrowFailure() {
  if (failure_) std::rethrow_exception(failure_);
  const std::optional<std::string> elsewhere = table_.usedElsewhere();
  if (!elsewhere) return;
  op_name_ = *elsewhere;
  where_.source = "on another thread";
  refuseRead();
}

/// Constants that are alive after forward and have other contents than before: what an eager program would find in
/// them in its next step is lost.
void Recorder::noteWrittenConstants() {
  for (const auto& [weak, external] : constants_) {
    const auto storage = weak.lock();
    const std::vector<Segment>* segments = storage ? table_.segmentsOf(storage.get()) : nullptr;
    if (segments == nullptr || request_.is_nested) continue;
    const bool is_written = std::ranges::any_of(
        *segments, [&, index = external](const Segment& s) { return s.external == index && s.written; });
    if (!is_written) continue;
    std::string name = request_.name_of ? request_.name_of(storage.get()) : std::string();
    if (name.empty()) name = cat("a tensor first used at ", sourceOf(graph().externals[external].name));
    recording_.written_constants.push_back(std::move(name));
  }
}

Recording Recorder::finish() {
  requireNoCount();
  noteWrittenConstants();
  graph().random_draws = random_.total();
  std::vector<bool> is_done(graph().externals.size(), false);
  for (const ModelTensor& tensor : request_.model) {
    if (!tensor.tensor->defined() || !tensor.tensor->has_storage()) continue;
    const Place place = table_.find(*tensor.tensor);
    if (!place || !place.segment->written || is_done[place.segment->external]) continue;
    is_done[place.segment->external] = true;
    graph().outputs.push_back({place.segment->base, ir::OutputKind::kUpdate, place.segment->external});
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Place place = table_.find(arguments_[i]);
    if (place && place.segment->written)
      recording_.written_arguments.emplace_back(static_cast<int>(i), place.segment->base);
  }
  return std::move(recording_);
}

}  // namespace abele::capture
