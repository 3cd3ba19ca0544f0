// Checks the inputs of a call: the batch can be split, and shapes and types are those that were compiled.
#include "session/inputs.h"

#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "compile/tensors.h"
#include "session/impl.h"

namespace abele::session {
namespace {

/// Returns true if several elements share memory, as in an expanded tensor.
bool overlaps(const Type& type) {
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

// An input with other strides is copied into the compiled strides. This needs memory without overlaps.
void requireBindable(const Type& compiled, const Type& found, size_t index) {
  if (!overlaps(compiled)) return;
  for (size_t d = 0; d < found.sizes.size(); ++d)
    ABELE_REQUIRE(found.sizes[d] == 1 || found.strides[d] == compiled.strides[d], E0704,
                  {.what = cat("the strides of input ", index, " differ from the compiled ones, which repeat elements"),
                   .at = cat("tensor argument ", index),
                   .found = found.str(),
                   .expected = compiled.str(),
                   .remedy = "call contiguous() on this input at every call, the first one too"});
}

}  // namespace

void checkSameInputs(const std::vector<Type>& compiled, const std::vector<at::Tensor>& inputs,
                     const std::string& remedy) {
  ABELE_REQUIRE(inputs.size() == compiled.size(), E0704,
                {.what = cat("called with ", inputs.size(), " tensors, compiled with ", compiled.size()),
                 .found = cat(inputs.size(), " tensors"),
                 .expected = cat(compiled.size(), " tensors"),
                 .remedy = remedy});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Type found = compile::typeOf(inputs[i]);
    if (found.dtype == compiled[i].dtype && found.sizes == compiled[i].sizes) {
      requireBindable(compiled[i], found, i);
      continue;
    }
    const bool shape = found.dtype == compiled[i].dtype;
    throwUser(ErrorCode::E0704,
              {.what = cat(shape ? "the shape" : "the type", " of input ", i, " differs from the compiled one"),
               .at = cat("tensor argument ", i),
               .found = contiguousType(found.dtype, found.sizes).str(),
               .expected = contiguousType(compiled[i].dtype, compiled[i].sizes).str(),
               .remedy = remedy});
  }
}

std::vector<at::Tensor> partOf(const std::vector<at::Tensor>& inputs, int64_t index, int64_t count) {
  if (count == 1) return inputs;
  std::vector<at::Tensor> rows;
  for (const at::Tensor& input : inputs) {
    const int64_t part = input.size(0) / count;
    rows.push_back(input.narrow(0, index * part, part));
  }
  return rows;
}

std::vector<at::Tensor> syntheticLike(const std::vector<Type>& types, compile::SyntheticData kind) {
  at::Generator generator = at::detail::createCPUGenerator();
  std::vector<at::Tensor> made;
  for (const Type& type : types) {
    const auto dtype = static_cast<at::ScalarType>(type.dtype);
    at::Tensor memory = at::empty({type.extent()}, at::TensorOptions(dtype)).zero_();
    if (at::isFloatingType(dtype) && kind == compile::SyntheticData::kNormal) memory.normal_(0, 1, generator);
    if (at::isFloatingType(dtype) && kind == compile::SyntheticData::kUniform) memory.uniform_(0, 1, generator);
    made.push_back(memory.as_strided(type.sizes, type.strides));
  }
  return made;
}

}  // namespace abele::session
