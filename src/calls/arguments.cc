#include "calls/arguments.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/Layout.h>

#include "base/error.h"
#include "base/joined.h"
#include "compile/tensors.h"

namespace abele::calls {
namespace {

/// "torch.sparse_coo", as Python says it.
const char* layoutName(at::Layout layout) {
  switch (layout) {
    case at::kSparse: return "torch.sparse_coo";
    case at::kSparseCsr: return "torch.sparse_csr";
    case at::kSparseCsc: return "torch.sparse_csc";
    case at::kSparseBsr: return "torch.sparse_bsr";
    case at::kSparseBsc: return "torch.sparse_bsc";
    case at::kMkldnn: return "torch._mkldnn";
    default: return "of its own";
  }
}

std::string typeName(DType type) { return std::string(c10::getDtypeNames(static_cast<at::ScalarType>(type)).first); }

void requireDenseTensor(const at::Tensor& tensor) {
  const bool nested = tensor.is_nested();
  ABELE_REQUIRE(
      !nested && tensor.layout() == at::kStrided, E0708,
      {.what = nested ? "a nested tensor as an input" : cat("an input of layout ", layoutName(tensor.layout())),
       .expected = "a dense tensor",
       .remedy = "call to_dense() (nested tensors: to_padded_tensor()) before the call"});
}

void requireElements(const at::Tensor& tensor) {
  if (tensor.numel() != 0) return;
  throwUser(ErrorCode::E0708, {.what = cat("Zero-sized tensors are unsupported (Got shape [", joined(tensor.sizes()),
                                           "]): an input has no elements"),
                               .expected = "at least one element in every input"});
}

void requireType(const at::Tensor& tensor, const std::vector<DType>& taken) {
  const auto type = static_cast<DType>(tensor.scalar_type());
  if (taken.empty() || std::ranges::find(taken, type) != taken.end()) return;
  std::vector<std::string> names;
  for (const DType each : taken) names.push_back(typeName(each));
  std::ranges::sort(names);
  throwUser(ErrorCode::E0708, {.what = cat("an input of type torch.", typeName(type)), .expected = joined(names)});
}

/// The type that PopTorch's devices use in place of one that they lack.
std::optional<at::ScalarType> narrowType(at::ScalarType type) {
  if (type == at::kLong) return at::kInt;
  if (type == at::kDouble) return at::kFloat;
  return std::nullopt;
}

}  // namespace

void requireDense(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& tensor : inputs)
    if (tensor.defined()) requireDenseTensor(tensor);
}

std::vector<at::Tensor> deviceInputs(const std::vector<at::Tensor>& given, const ArgumentRules& rules) {
  std::vector<at::Tensor> inputs;
  for (at::Tensor tensor : given) {
    requireDenseTensor(tensor);
    requireElements(tensor);
    requireType(tensor, rules.policy.input_types);
    compile::requireMemory(tensor, cat("input ", inputs.size()));
    if (tensor.requires_grad()) {
      rules.warn("an input tensor requires a gradient: it is detached, since a step computes no gradients of inputs");
      tensor = tensor.detach();
    }
    if (!rules.policy.many_programs && !tensor.is_contiguous())
      rules.warn(
          "an input tensor is not contiguous: the program is made for the strides of its first call, and tensors with "
          "other strides are copied into these");
    if (!rules.policy.wide_numbers && tensor.scalar_type() == at::kDouble && !rules.has_float64()) {
      rules.warn("float64 inputs are converted to float32");
      tensor = tensor.to(at::kFloat);
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

std::vector<at::Tensor> inTypes(std::vector<at::Tensor> inputs, const std::vector<Type>& compiled,
                                const Policy& policy) {
  if (policy.wide_numbers) return inputs;
  for (size_t i = 0; i < std::min(inputs.size(), compiled.size()); ++i)
    inputs[i] = inputs[i].to(static_cast<at::ScalarType>(compiled[i].dtype));
  return inputs;
}

void requireApart(const std::vector<at::Tensor>& inputs, const std::vector<size_t>& written) {
  for (const size_t i : written)
    for (size_t j = 0; j < inputs.size(); ++j) {
      ABELE_REQUIRE(j == i || !compile::shareMemory(inputs.at(i), inputs[j]), E0708,
                    {.what = cat("forward writes into tensor argument ", i, ", which shares memory with argument ", j),
                     .expected = "separate memory, because devices copy each argument",
                     .remedy = "clone() one of them before the call"});
    }
}

at::Tensor narrowed(const at::Tensor& value, const std::string& name, const Policy& policy) {
  const std::optional<at::ScalarType> type = narrowType(value.scalar_type());
  if (policy.wide_numbers || !type) return value;
  at::Tensor result = value.to(*type);
  if (*type != at::kInt) return result;
  const at::Tensor wide = result.to(at::kLong);
  if (wide.equal(value)) return result;
  using Limits = std::numeric_limits<int32_t>;
  throwUser(ErrorCode::E0609,
            {.what = cat(name, " holds an integer that int32 does not: poptorch narrows int64 as PopTorch does"),
             .found = cat(value.masked_select(wide.ne(value))[0].item<int64_t>()),
             .expected = cat(Limits::min(), " to ", Limits::max()),
             .remedy = "wrap the model with abele.inferenceModel or abele.trainingModel, which return int64 as int64"});
}

void writeBack(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs,
               const std::vector<size_t>& written, const Policy& policy) {
  const at::NoGradGuard no_grad;
  for (const size_t i : written) {
    const at::Tensor &mine = inputs.at(i), &theirs = given.at(i);
    if (mine.const_data_ptr() == theirs.const_data_ptr()) continue;
    const bool is_narrow = narrowType(mine.scalar_type()) == theirs.scalar_type();
    theirs.copy_(is_narrow ? narrowed(mine, cat("tensor argument ", i), policy) : mine);
  }
}

std::vector<at::Tensor> narrowedResults(std::vector<at::Tensor> results, const Constants& constants,
                                        const Policy& policy) {
  for (size_t i = 0; i < results.size(); ++i)
    if (results[i].defined()) results[i] = narrowed(results[i], cat("result ", i), policy);
  if (policy.repeats_constants) return results;
  for (const auto& [i, sizes] : constants) {
    at::Tensor& result = results.at(i);
    // One of the equal parts, one for each micro-batch.
    if (result.defined() && result.sizes() != at::IntArrayRef(sizes))
      result = sizes.empty() ? result.select(0, 0) : result.slice(0, 0, sizes[0]);
  }
  return results;
}

}  // namespace abele::calls
