#include "compile/tensors.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"

namespace abele::compile {

Type typeOf(const at::Tensor& tensor) {
  Type type;
  if (!tensor.defined()) return type;
  type.dtype = static_cast<DType>(tensor.scalar_type());
  type.sizes = tensor.sizes().vec();
  type.strides = tensor.strides().vec();
  return type;
}

void requireMemory(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) return;
  const auto needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                       static_cast<size_t>(tensor.storage_offset()));
  ABELE_REQUIRE(tensor.storage().nbytes() >= needed, E0708,
                {.what = cat("the memory of ", name, " is smaller than its sizes"),
                 .at = name,
                 .found = cat(tensor.storage().nbytes(), " bytes"),
                 .expected = cat(needed, " bytes for ", typeOf(tensor).str()),
                 .remedy = "keep the storage of the tensor: do not resize or free it"});
}

void requireMemory(const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) requireMemory(inputs[i], cat("input ", i));
}

namespace {

using Steps = std::map<int64_t, int64_t, std::greater<>>;  // how often each stride may be taken, the longest first

/// Returns true if steps from `step` on can add up to the distance.
bool addUpTo(int64_t distance, Steps::const_iterator step, Steps::const_iterator end) {
  if (step == end || distance < 0) return distance == 0;
  const auto [stride, most] = *step;
  const auto next = std::next(step);
  int64_t rest = 0;  // that the shorter ones can reach
  for (auto shorter = next; shorter != end; ++shorter) rest += shorter->first * shorter->second;
  const int64_t least = std::max<int64_t>(0, (distance - rest + stride - 1) / stride);
  for (int64_t count = least; count <= std::min(most, distance / stride); ++count)
    if (addUpTo(distance - count * stride, next, end)) return true;
  return false;
}

}  // namespace

// A byte of `a` is its first byte and some strides. A byte of `b` is its last byte less some strides.
bool shareMemory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || !a.has_storage() || !a.is_alias_of(b) || a.numel() == 0 || b.numel() == 0)
    return false;
  Steps steps;
  int64_t distance = -a.storage_offset() * a.element_size() + b.storage_offset() * b.element_size();
  for (const bool is_second : {false, true}) {
    const at::Tensor& tensor = is_second ? b : a;
    const int64_t size = tensor.element_size();
    const auto add = [&](int64_t stride, int64_t most) {
      if (stride > 0 && most > 0) steps[stride] += most;
      if (is_second) distance += stride * most;
    };
    for (int64_t d = 0; d < tensor.dim(); ++d) add(tensor.stride(d) * size, tensor.size(d) - 1);
    add(1, size - 1);
  }
  return addUpTo(distance, steps.begin(), steps.end());
}

std::vector<at::Tensor> bindable(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> bound;
  for (const at::Tensor& input : inputs) bound.push_back(input.detach().resolve_conj().resolve_neg());
  return bound;
}

}  // namespace abele::compile
