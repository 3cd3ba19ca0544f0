#include "capture/inputs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_strided.h>

#include "base/cat.h"
#include "base/error.h"
#include "capture/math_bits.h"
#include "capture/type_bridge.h"
#include "capture/values.h"

namespace abele::capture {
namespace {

/// The type of the memory that belongs to an input: its own, or its flat extent when it has gaps or overlaps.
Type memoryType(const at::Tensor& tensor) {
  Type type = typeOf(tensor);
  return tensor.is_non_overlapping_and_dense() ? type : contiguousType(type.dtype, {type.extent()});
}

at::Tensor memoryCopy(const at::Tensor& tensor) {
  const Type type = memoryType(tensor);
  return tensor.detach().as_strided(type.sizes, type.strides, tensor.storage_offset()).clone();
}

/// Whether several elements share memory, as those of an expanded tensor do.
bool repeatsMemory(const Type& type) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t d = 0; d < type.sizes.size(); ++d)
    if (type.sizes[d] > 1) dims.emplace_back(type.strides[d], type.sizes[d]);
  std::ranges::sort(dims);
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return true;
    extent += stride * (size - 1);
  }
  return false;
}

/// The type of a parameter that is trained: its own, also where it has gaps, since gradients have its sizes.
Type trainedType(const ModelTensor& parameter) {
  Type type = typeOf(*parameter.tensor);
  ABELE_REQUIRE(type.numel() == 0 || !repeatsMemory(type), E0105,
                {.what = cat("parameter ", parameter.name, " is trained, and several of its elements share memory"),
                 .found = type.str(),
                 .expected = "a parameter with separate memory for each element",
                 .remedy = "make the parameter from a copy: torch.nn.Parameter(tensor.clone(memory_format="
                           "torch.contiguous_format))"});
  return type;
}

/// A copy whose elements lie as the tensor's do, with gaps and with elements that share memory: kernels choose by that.
at::Tensor copyWithGeometry(const at::Tensor& tensor, c10::Device device) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    const Type type = typeOf(tensor);
    const at::Tensor memory =
        tensor.as_strided({type.extent()}, {1}).to(device, tensor.scalar_type(), false, /*copy=*/true);
    return memory.as_strided(type.sizes, type.strides);
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device)).copy_(tensor);
}

/// The line in a constant's name.
std::string lineOf(const std::string& constant) { return constant.substr(constant.find('/') + 1); }

}  // namespace

Inputs::Inputs(const Request& request, Recording* recording, StorageTable* table, GraphWriter* writer, Values* outer)
    : request_(request), recording_(*recording), table_(*table), writer_(*writer), outer_(outer) {
  for (size_t i = 0; i < request.model.size(); ++i) {
    const at::Tensor& tensor = *request.model[i].tensor;
    // A tensor that cannot be captured is an error only if the program uses it.
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) continue;
    if (!isKnown(tensor.scalar_type()) || table_.find(tensor)) continue;
    Segment& segment = table_.add(tensor);
    segment.is_input = true;
    segment.kind = request.model[i].is_parameter ? ir::InputKind::kParameter : ir::InputKind::kBuffer;
    segment.origin = static_cast<int32_t>(i);
  }
}

void Inputs::addArgument(const at::Tensor& given) {
  // The body of a loop gets other results of the program at every turn.
  arguments_.push_back(request_.is_nested ? given.detach().clone() : copyWithGeometry(given.detach(), request_.device));
  const auto index = static_cast<int32_t>(arguments_.size()) - 1;
  Segment& segment = table_.add(arguments_.back());
  segment.is_input = true;
  segment.kind = ir::InputKind::kArgument;
  segment.origin = index;
  segment.base =
      writer_.addInput(typeOf(arguments_.back()), ir::InputKind::kArgument, index, cat("x", index), /*varies=*/true);
}

void Inputs::addConstant(const at::Tensor& given, const std::string& name) {
  // A nested program knows memory as the program around it does: two tensors that share some are views of one value.
  const at::Tensor tensor = withoutMathBits(outer_ != nullptr ? outer_->memoryOf(given) : given);
  Segment& segment = table_.add(tensor);
  segment.is_input = true;
  segment.external = static_cast<int32_t>(writer_.graph().externals.size());
  const Type type = memoryType(tensor);
  writer_.graph().externals.push_back({.name = name, .kind = ir::InputKind::kConstant, .type = type});
  constants_.emplace_back(tensor.storage().getWeakStorageImpl(), segment.external);
  outside_.emplace_back(given.getIntrusivePtr(), segment.external);
  // A copy: the program may write into its tensor later.
  recording_.constants.push_back(memoryCopy(tensor));
  if (request_.is_nested) {
    recording_.constant_sources.resize(recording_.constants.size());
    recording_.constant_sources.back() = tensor;
  }
  segment.base = writer_.addInput(type, ir::InputKind::kConstant, segment.external, name,
                                  /*varies=*/outer_ != nullptr && outer_->mayVary(tensor));
}

void Inputs::addModelTensor(Segment& segment) {
  const ModelTensor& source = request_.model[segment.origin];
  const bool trainable = request_.training && source.is_parameter && source.tensor->requires_grad();
  ABELE_REQUIRE(mathBits(*source.tensor) == 0, E0105,
                {.what = cat(source.name, " is a conjugated or negated view"),
                 .found = typeOf(*source.tensor).str(),
                 .expected = "a parameter or buffer without the conjugate or negative bit",
                 .remedy = "make it from the view's values (.resolve_conj(), .resolve_neg())"});
  const Type type = trainable ? trainedType(source) : memoryType(*source.tensor);
  segment.external = static_cast<int32_t>(writer_.graph().externals.size());
  writer_.graph().externals.push_back(
      {.name = source.name, .kind = segment.kind, .type = type, .trainable = trainable});
  recording_.constants.emplace_back();
  segment.base = writer_.addInput(type, segment.kind, segment.external, source.name, /*varies=*/true);
}

bool Inputs::contains(const at::Tensor& tensor) const { return table_.inputOf(tensor) != nullptr; }

bool Inputs::isArgument(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const Segment* input = table_.inputOf(tensor);
  return input != nullptr && input->kind == ir::InputKind::kArgument && !input->written;
}

const ModelTensor* Inputs::bufferOf(const at::Tensor& tensor) const {
  const Segment* input = table_.inputOf(tensor);
  return input != nullptr && input->kind == ir::InputKind::kBuffer ? &request_.model[input->origin] : nullptr;
}

std::optional<std::string> Inputs::lineOfConstant(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  const Segment* input = table_.inputOf(tensor);
  if (input == nullptr || input->kind != ir::InputKind::kConstant) return std::nullopt;
  return lineOf(writer_.graph().externals[input->external].name);
}

/// Constants that are alive after forward and have other contents than before: what an eager program would find in
/// them in its next step is lost.
void Inputs::noteWrittenConstants() {
  if (request_.is_nested) return;
  for (const auto& [weak, external] : constants_) {
    const auto storage = weak.lock();
    const std::vector<Segment>* segments = storage ? table_.segmentsOf(storage.get()) : nullptr;
    if (segments == nullptr) continue;
    const bool is_written = std::ranges::any_of(
        *segments, [&, index = external](const Segment& s) { return s.external == index && s.written; });
    if (!is_written) continue;
    std::string name = request_.name_of ? request_.name_of(storage.get()) : std::string();
    if (name.empty()) name = cat("a tensor first used at ", lineOf(writer_.graph().externals[external].name));
    recording_.written_constants.push_back(std::move(name));
  }
}

void Inputs::noteOutside() {
  if (request_.is_nested) return;
  for (auto& [weak, external] : outside_) {
    const auto tensor = weak.lock();
    if (!tensor || tensor->is_inference()) continue;  // they have no version counter
    const uint32_t version = tensor->version_counter().current_version();
    recording_.outside.push_back({weak, version, lineOf(writer_.graph().externals[external].name)});
  }
}

at::Tensor distinctPart(const at::Tensor& tensor, const at::Tensor& buffer) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (buffer.stride(static_cast<int64_t>(d)) == 0) sizes[d] = std::min<int64_t>(sizes[d], 1);
  return sizes == tensor.sizes() ? tensor
                                 : tensor.detach().as_strided(sizes, tensor.strides(), tensor.storage_offset());
}

// The memory keeps what it holds: backward may still read it.
void Inputs::replace(const at::Tensor& buffer, ir::ValueId value, const Where& where) {
  const Place place = table_.find(buffer);
  Segment& segment = *place.segment;
  const auto earlier = replaced_.find(segment.external);
  const ir::ValueId before = earlier == replaced_.end() ? segment.base : earlier->second.after;
  const Type type = writer_.graph().values[before].type, view = typeOf(distinctPart(buffer, buffer));
  const ModelTensor* own = bufferOf(buffer);
  ABELE_REQUIRE(
      own != nullptr && place.offset == 0 && type == memoryType(buffer) && !repeatsMemory(view), E0108,
      {.what = cat("forward replaced ", own ? own->name : "a buffer", ", which shares its memory with another tensor"),
       .at = where.source,
       .found = typeOf(buffer).str(),
       .expected = "separate memory",
       .remedy = "register a clone() of the tensor as the buffer"});
  const ir::ValueId after = writer_.addCopy(before, view, value, where, /*varies=*/true);
  segment.written = true;
  replaced_.insert_or_assign(segment.external, Replaced{segment.base, after});
}

ir::ValueId Inputs::lastValueOf(const Segment& segment) const {
  const auto replaced = replaced_.find(segment.external);
  if (replaced == replaced_.end()) return segment.base;
  ABELE_REQUIRE(segment.base == replaced->second.before, E0108,
                {.what = cat("backward writes into ", writer_.graph().externals[segment.external].name,
                             ", which forward replaced"),
                 .expected = "writes into the tensor that replaced it"});
  return replaced->second.after;
}

bool Inputs::overlapsAnotherInUse(const at::Tensor& tensor) const {
  const std::vector<Segment>* segments = table_.segmentsOf(tensor.storage().unsafeGetStorageImpl());
  const Segment* own = table_.find(tensor).segment;
  return segments != nullptr && std::ranges::any_of(*segments, [&](const Segment& other) {
           return &other != own && other.external != ir::kNone && other.begin < own->end && own->begin < other.end;
         });
}

void Inputs::recordWrites() {
  noteWrittenConstants();
  noteOutside();
  ir::Graph& graph = writer_.graph();
  std::vector<bool> is_done(graph.externals.size(), false);
  for (const ModelTensor& tensor : request_.model) {
    if (!tensor.tensor->defined() || !tensor.tensor->has_storage()) continue;
    const Place place = table_.find(*tensor.tensor);
    if (!place || !place.segment->written || is_done[place.segment->external]) continue;
    is_done[place.segment->external] = true;
    graph.outputs.push_back({lastValueOf(*place.segment), ir::OutputKind::kUpdate, place.segment->external});
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Place place = table_.find(arguments_[i]);
    if (place && place.segment->written)
      recording_.written_arguments.emplace_back(static_cast<int>(i), place.segment->base);
  }
}

}  // namespace abele::capture
