#include "compile/inputs.h"

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "compile/tensors.h"

namespace abele::compile {
namespace {

std::string batchFactors(const ProgramOptions& options) {
  std::string text = cat("deviceIterations ", options.device_iterations);
  if (options.training) text += cat(" * gradientAccumulation ", options.gradient_accumulation);
  if (options.replicas > 1) text += cat(" * replicationFactor ", options.replicas);
  if (options.input_group_size > 1) text += cat(" / input group size ", options.input_group_size);
  return text;
}

void checkOneInput(const ProgramOptions& options, size_t index, const at::Tensor& input) {
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

void requireBuffers(const ProgramOptions& options, const std::vector<capture::ModelTensor>& model) {
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
                   .remedy = "use names of named_buffers()"});
  }
}

void checkBatchSplit(const ProgramOptions& options, const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) checkOneInput(options, i, inputs[i]);
}

std::vector<at::Tensor> firstMicroBatches(const std::vector<at::Tensor>& inputs, int64_t count, int64_t of) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& input : bindable(inputs))
    rows.push_back(count < of ? input.narrow(0, 0, input.size(0) / of * count) : input);
  return rows;
}

}  // namespace abele::compile
