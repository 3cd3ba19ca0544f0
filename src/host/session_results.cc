// Which micro-batches a call returns, and in what shape. Source: spec executor.md section 3.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "host/session_impl.h"

namespace abele::host {
namespace {

/// Micro-batches whose results are returned, in order.
std::vector<int64_t> returnedMicroBatches(const SessionOptions& options) {
  const int64_t count = options.device_iterations * options.gradient_accumulation;
  std::vector<int64_t> chosen;
  switch (options.output_mode) {
    case OutputMode::kFinal: return {count - 1};
    case OutputMode::kEveryN:
      for (int64_t k = options.output_period - 1; k < count; k += options.output_period) chosen.push_back(k);
      return chosen;
    case OutputMode::kAll:
    case OutputMode::kSum:
      for (int64_t k = 0; k < count; ++k) chosen.push_back(k);
      return chosen;
  }
  return chosen;
}

/// Shape of `count` results of one micro-batch: dim 0 is multiplied, a scalar becomes a vector; one is left as it is.
std::vector<int64_t> combinedSizes(std::vector<int64_t> one, int64_t count) {
  if (count == 1) return one;
  if (one.empty()) return {count};
  one[0] *= count;
  return one;
}

at::Tensor emptyOf(const Type& one, int64_t count) {
  return at::empty(combinedSizes(one.sizes, count), at::TensorOptions(static_cast<at::ScalarType>(one.dtype)));
}

/// Where result `index` of `count` is in the tensor that emptyOf made.
at::Tensor rowsOf(const at::Tensor& whole, const Type& one, int64_t index, int64_t count) {
  if (count == 1) return whole;
  if (one.sizes.empty()) return whole.select(0, index);
  return whole.narrow(0, index * one.sizes[0], one.sizes[0]);
}

}  // namespace

Results allocateResults(const SessionOptions& options, const Compiled& compiled) {
  const capture::Recording& recording = compiled.recording;
  std::vector<int32_t> targets;
  for (const ir::Output& output : recording.graph.outputs)
    if (output.kind == ir::OutputKind::kResult) targets.push_back(output.target);

  const int64_t micro_batches = options.device_iterations * options.gradient_accumulation;
  const std::vector<int64_t> chosen = returnedMicroBatches(options);
  const int64_t rows = static_cast<int64_t>(chosen.size());
  Results results;
  results.bound.resize(compiled.executable.output_slots.size());
  size_t next_host = 0;
  for (size_t i = 0; i < recording.result_output.size(); ++i) {
    if (recording.result_output[i] == ir::kNone) {
      results.returned.push_back(recording.host_results.at(next_host++));
      continue;
    }
    const int32_t target = targets.at(recording.result_output[i]);
    const Type& one = compiled.result_types.at(i);
    at::Tensor whole = emptyOf(one, rows);
    std::vector<at::Tensor>& bound = results.bound.at(target);
    bound.assign(micro_batches, at::Tensor());
    for (int64_t j = 0; j < rows; ++j) bound[chosen[j]] = rowsOf(whole, one, j, rows);
    if (options.output_mode == OutputMode::kSum && rows > 1) results.sums.push_back({static_cast<int32_t>(i), target});
    results.returned.push_back(std::move(whole));
  }
  const size_t num_results = recording.result_output.size();
  for (size_t j = 0; j < recording.written_arguments.size(); ++j) {
    const Type& one = recording.graph.values[recording.written_arguments[j].second].type;
    results.written.push_back(emptyOf(one, micro_batches));
    for (int64_t k = 0; k < micro_batches; ++k)
      results.bound.at(num_results + j).push_back(rowsOf(results.written.back(), one, k, micro_batches));
  }
  return results;
}

void addWrittenArguments(const capture::Recording& recording, ir::Graph& graph) {
  int32_t target = static_cast<int32_t>(recording.result_output.size());
  for (const auto& [argument, value] : recording.written_arguments)
    graph.outputs.push_back({value, ir::OutputKind::kResult, target++});
}

void writeBack(const Compiled& compiled, const Results& results, const std::vector<at::Tensor>& inputs) {
  for (size_t j = 0; j < results.written.size(); ++j) {
    const at::Tensor& input = inputs[compiled.recording.written_arguments[j].first];
    input.copy_(results.written[j].view(input.sizes()));
  }
}

void addUp(Results& results) {
  for (const Results::Sum& sum : results.sums) {
    const std::vector<at::Tensor>& rows = results.bound[sum.target];
    for (size_t k = 1; k < rows.size(); ++k) rows[0].add_(rows[k]);
    results.returned[sum.result] = rows[0].clone();
  }
}

}  // namespace abele::host
