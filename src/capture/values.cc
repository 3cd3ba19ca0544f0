#include "capture/values.h"

#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

#include "base/error.h"
#include "capture/type_bridge.h"
#include "ir/rewrite.h"

namespace abele::capture {

void requireSupported(const at::Tensor& tensor, const Position& position, c10::Device device) {
  const bool is_strided = tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage();
  std::string found;
  if (tensor.defined() && tensor.is_nested())
    found = "a nested tensor";
  else if (!is_strided)
    found = !tensor.defined()                 ? "an undefined tensor"
            : tensor.layout() == at::kStrided ? "a tensor without memory"
                                              : cat("layout ", c10::str(tensor.layout()));
  else if (tensor.device() != device)
    found = cat("device ", tensor.device().str());
  else if (tensor.key_set().has(c10::DispatchKey::Python) || tensor.unsafeGetTensorImpl()->is_python_dispatch())
    found = "a tensor subclass with its own dispatch";
  else if (tensor.storage().nbytes() < at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                                        tensor.itemsize(),
                                                                        static_cast<size_t>(tensor.storage_offset())))
    found = cat("memory of ", tensor.storage().nbytes(), " bytes, too little for ", typeOf(tensor).str());
  else if (!isKnown(tensor.scalar_type()))
    found = cat("element type ", c10::toString(tensor.scalar_type()));
  const bool is_sparse = tensor.defined() && tensor.layout() != at::kStrided;
  ABELE_REQUIRE(
      found.empty(), E0105,
      {.what = "a tensor that cannot be captured",
       .at = position.str(),
       .found = std::move(found),
       .expected = cat("a dense, strided ", device.is_cpu() ? "CPU" : device.str(),
                       " tensor of an element type that Abele knows"),
       .remedy = is_sparse ? "make embeddings with sparse=False, so that their gradients are dense, and convert "
                             "other sparse tensors before this operator (.to_dense())"
                           : "convert it (.cpu(), .to(dtype)) before this operator"});
}

bool Values::isHostResult(const at::Tensor& tensor) const {
  if (position_.device.is_cpu() || !tensor.defined() || !tensor.is_cpu() || !tensor.has_storage()) return false;
  const Place place = table_.find(tensor);
  return place && place.segment->base != ir::kNone && writer_.graph().values[place.segment->base].def != ir::kNone;
}

Place Values::placeOf(const at::Tensor& tensor) {
  requireSupported(tensor, position_, isHostResult(tensor) ? tensor.device() : position_.device);
  Place place = table_.find(tensor);
  if (!place) {
    ABELE_REQUIRE(table_.isFromOutside(tensor), E0105,
                  {.what = "a tensor that extends beyond the one whose memory it shares",
                   .at = position_.str(),
                   .found = typeOf(tensor).str(),
                   .remedy = "clone() the tensor before this operator"});
    inputs_.addConstant(tensor, cat("constant/", position_.line()));
    place = table_.find(tensor);
  }
  if (place.segment->base == ir::kNone) inputs_.addModelTensor(*place.segment);
  return place;
}

ir::ValueId Values::findView(const Segment& segment, const Type& type, int64_t offset) const {
  const std::vector<ir::Value>& values = writer_.graph().values;
  const auto matches = [&](ir::ValueId v) { return values[v].offset == offset && values[v].type == type; };
  if (matches(segment.base)) return segment.base;
  const auto [begin, end] = segment.views.equal_range(offset);
  const auto found = std::find_if(begin, end, [&](const auto& view) { return matches(view.second); });
  return found == end ? ir::kNone : found->second;
}

ir::ValueId Values::lookUp(const at::Tensor& tensor) {
  const Place place = placeOf(tensor);
  Segment& segment = *place.segment;
  const Type type = typeOf(tensor);
  const ir::ValueId known = findView(segment, type, place.offset);
  if (known != ir::kNone) return known;
  requireSupported(tensor, position_);  // values on the host have no views
  ir::Node& node = writer_.addNode("", position_.where);
  const ir::ValueId view = ir::makeView(writer_.graph(), node, type, place.offset, segment.base);
  segment.views.emplace(place.offset, view);
  return view;
}

ir::ValueId Values::contentsOf(const at::Tensor& tensor) const {
  const Place place = table_.find(tensor);
  return place ? place.segment->base : ir::kNone;
}

bool Values::mayVary(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const Place place = table_.find(tensor);
  if (!place) return outer_ != nullptr && outer_->mayVary(tensor);
  return place.segment->base == ir::kNone || writer_.varies(place.segment->base);
}

at::Tensor Values::memoryOf(const at::Tensor& tensor) {
  const Segment& segment = *placeOf(tensor).segment;
  const Type& type = writer_.graph().values[segment.base].type;
  at::Tensor memory = at::empty({0}, at::TensorOptions().dtype(static_cast<at::ScalarType>(type.dtype)));
  return memory.set_(tensor.storage(), segment.begin / elementBytes(type.dtype), type.sizes, type.strides);
}

// ATen makes tensors of lists (at::tensor) by filling new memory without an operator. So memory that no operator wrote
// has the contents that it has now.
void Values::adoptContents(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const Place place = table_.find(tensor);
  if (!place || place.segment->is_input || place.segment->written) return;
  const ir::Node* maker = writer_.makerOf(place.segment->base);
  if (maker == nullptr || !isAllocation(maker->op) || writer_.graph().values[place.segment->base].type.numel() == 0)
    return;
  const at::Tensor whole = memoryOf(tensor);
  if (at::has_internal_overlap(whole) == at::MemOverlap::Yes) return;  // copy_ could not fill it
  const at::Tensor contents = whole.clone(at::MemoryFormat::Contiguous);
  inputs_.addConstant(contents, cat("constant/", position_.line()));
  const ir::ValueId from = table_.find(contents).segment->base;

  Segment& filled = *table_.find(tensor).segment;
  filled.base =
      writer_.addCopy(filled.base, writer_.graph().values[filled.base].type, from, position_.where, /*varies=*/false);
  filled.views.clear();
  filled.written = true;
}

}  // namespace abele::capture
