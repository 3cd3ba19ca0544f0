// What a call may be given: batches that can be split, and the shapes and types that were compiled.
#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "host/session_impl.h"

namespace abele::host {
namespace {

std::string batchFactors(const SessionOptions& options) {
  std::string text = cat("deviceIterations ", options.device_iterations);
  if (options.training) text += cat(" * gradientAccumulation ", options.gradient_accumulation);
  if (options.replicas > 1) text += cat(" * replicationFactor ", options.replicas);
  if (options.input_group_size > 1) text += cat(" / input group size ", options.input_group_size);
  return text;
}

void checkOneInput(const SessionOptions& options, size_t index, const at::Tensor& input) {
  const int64_t parts = inputMicroBatches(options);
  ABELE_REQUIRE(input.defined(), E0703,
                {.what = cat("input ", index, " is an undefined tensor"),
                 .expected = "a tensor",
                 .remedy = "leave absent inputs out of forward's tensor arguments"});
  const std::string type = typeOf(input).str();
  ABELE_REQUIRE(input.numel() > 0, E0703,
                {.what = cat("input ", index, " has no elements"),
                 .at = cat("tensor argument ", index),
                 .found = type,
                 .expected = "a tensor whose every dimension is at least 1",
                 .remedy = "drop empty batches before the call"});
  if (parts == 1) return;
  ABELE_REQUIRE(input.dim() > 0, E0703,
                {.what = cat("input ", index, " has no batch dimension to split into ", parts, " micro-batches"),
                 .at = cat("tensor argument ", index),
                 .found = type,
                 .expected = cat("dim 0 divisible by ", parts, " = ", batchFactors(options)),
                 .remedy = cat("pass one value per micro-batch, a tensor of shape [", parts, "]")});
  const int64_t rows = input.size(0);
  const int64_t more = (rows / parts + 1) * parts;
  const int64_t fewer = more - parts;
  ABELE_REQUIRE(rows % parts == 0, E0703,
                {.what = cat("the ", rows, " rows of input ", index, " cannot be split into ", parts, " micro-batches"),
                 .at = cat("tensor argument ", index),
                 .found = type,
                 .expected = cat("dim 0 divisible by ", parts, " = ", batchFactors(options)),
                 .remedy = fewer > 0 ? cat("pass ", fewer, " or ", more, " rows") : cat("pass ", more, " rows")});
}

}  // namespace

Type typeOf(const at::Tensor& tensor) {
  Type type;
  if (!tensor.defined()) return type;
  type.dtype = static_cast<DType>(tensor.scalar_type());
  type.sizes = tensor.sizes().vec();
  type.strides = tensor.strides().vec();
  return type;
}

void checkOptions(const SessionOptions& options) {
  const auto atLeastOne = [](const char* name, int64_t value) {
    ABELE_REQUIRE(value >= 1, E0702,
                  {.what = cat(name, " is ", value), .expected = "1 or more", .remedy = cat("set ", name, " to 1")});
  };
  atLeastOne("deviceIterations", options.device_iterations);
  atLeastOne("gradientAccumulation", options.gradient_accumulation);
  atLeastOne("the output return period", options.output_period);
  checkReplicas(options);
  checkProcesses(options);
  ABELE_REQUIRE(options.training || options.gradient_accumulation == 1, E0702,
                {.what = cat("gradientAccumulation is ", options.gradient_accumulation, " for inference"),
                 .expected = "1",
                 .remedy = cat("use deviceIterations(", options.device_iterations * options.gradient_accumulation,
                               ") to run several micro-batches a call")});
}

void requireBuffers(const SessionOptions& options, const std::vector<capture::ModelTensor>& model) {
  for (const std::string& name : options.updatable_buffers) {
    std::string known;
    bool is_found = false;
    for (const capture::ModelTensor& m : model) {
      if (m.is_parameter) continue;
      is_found = is_found || m.name == name;
      known += cat(known.empty() ? "" : ", ", m.name);
    }
    ABELE_REQUIRE(is_found, E0702,
                  {.what = cat("the model has no buffer ", name, ", which updatableNamedBuffers lists"),
                   .expected = known.empty() ? "a model with buffers" : known,
                   .remedy = "list buffers as named_buffers() names them"});
  }
}

void checkBatchSplit(const SessionOptions& options, const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) checkOneInput(options, i, inputs[i]);
}

std::vector<at::Tensor> firstMicroBatch(const std::vector<at::Tensor>& inputs, int64_t micro_batches) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& input : bindable(inputs))
    rows.push_back(micro_batches > 1 ? input.narrow(0, 0, input.size(0) / micro_batches) : input);
  return rows;
}

namespace {

/// Do several of its elements lie in the same memory, as those of an expanded tensor?
bool overlaps(const Type& type) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t d = 0; d < type.sizes.size(); ++d)
    if (type.sizes[d] > 1) dims.emplace_back(type.strides[d], type.sizes[d]);
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return true;
    extent += stride * (size - 1);
  }
  return false;
}

// Other strides than the compiled ones are copied into them, which only memory without overlaps allows.
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

void checkSameInputs(const std::vector<Type>& compiled, const std::vector<at::Tensor>& inputs) {
  static constexpr const char* kRemedy =
      "call destroy() and compile again with the new inputs, or wrap the model once more for them";
  ABELE_REQUIRE(inputs.size() == compiled.size(), E0704,
                {.what = cat("called with ", inputs.size(), " tensors, compiled with ", compiled.size()),
                 .found = cat(inputs.size(), " tensors"),
                 .expected = cat(compiled.size(), " tensors"),
                 .remedy = kRemedy});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Type found = typeOf(inputs[i]);
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
               .remedy = kRemedy});
  }
}

std::vector<at::Tensor> bindable(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> bound;
  for (const at::Tensor& input : inputs) bound.push_back(input.detach().resolve_conj().resolve_neg());
  return bound;
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

std::vector<at::Tensor> syntheticLike(const std::vector<Type>& types) {
  at::Generator generator = at::detail::createCPUGenerator();
  std::vector<at::Tensor> made;
  for (const Type& type : types) {
    const auto dtype = static_cast<at::ScalarType>(type.dtype);
    at::Tensor memory = at::empty({type.extent()}, at::TensorOptions(dtype)).zero_();
    if (at::isFloatingType(dtype)) memory.normal_(0, 1, generator);
    made.push_back(memory.as_strided(type.sizes, type.strides));
  }
  return made;
}

}  // namespace abele::host
