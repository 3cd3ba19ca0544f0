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

/// Shape of `rows` results of one micro-batch: dim 0 is multiplied, a scalar becomes a vector; one is left as it is.
std::vector<int64_t> combinedSizes(at::IntArrayRef one, int64_t rows) {
  std::vector<int64_t> sizes = one.vec();
  if (rows == 1) return sizes;
  if (sizes.empty()) return {rows};
  sizes[0] *= rows;
  return sizes;
}

}  // namespace

Results allocateResults(const SessionOptions& options, const Compiled& compiled) {
  const capture::Recording& recording = compiled.recording;
  std::vector<int32_t> targets;
  for (const ir::Output& output : recording.graph.outputs)
    if (output.kind == ir::OutputKind::kResult) targets.push_back(output.target);

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
    const at::Tensor& one = recording.results.at(i);
    at::Tensor whole = at::empty(combinedSizes(one.sizes(), rows), one.options());
    std::vector<at::Tensor>& bound = results.bound.at(target);
    bound.assign(options.device_iterations * options.gradient_accumulation, at::Tensor());
    for (int64_t j = 0; j < rows; ++j) {
      at::Tensor& row = bound[chosen[j]];
      if (rows == 1) row = whole;
      else if (one.dim() == 0) row = whole.select(0, j);
      else row = whole.narrow(0, j * one.size(0), one.size(0));
    }
    if (options.output_mode == OutputMode::kSum && rows > 1)
      results.sums.push_back({static_cast<int32_t>(i), target});
    results.returned.push_back(std::move(whole));
  }
  return results;
}

void addUp(Results& results) {
  for (const Results::Sum& sum : results.sums) {
    const std::vector<at::Tensor>& rows = results.bound[sum.target];
    for (size_t k = 1; k < rows.size(); ++k) rows[0].add_(rows[k]);
    results.returned[sum.result] = rows[0].clone();
  }
}

}  // namespace abele::host
