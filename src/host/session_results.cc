// Which micro-batches a call returns, and in what shape. Source: spec executor.md section 3.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "host/session_impl.h"

namespace abele::host {
namespace {

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

/// All rows of one result, its wanted micro-batches bound to them.
at::Tensor bindRows(const Type& one, const std::vector<int64_t>& chosen, int64_t micro_batches,
                    std::vector<at::Tensor>& bound) {
  const auto rows = static_cast<int64_t>(chosen.size());
  at::Tensor whole = emptyOf(one, rows);
  bound.assign(micro_batches, at::Tensor());
  for (int64_t j = 0; j < rows; ++j) bound[chosen[j]] = rowsOf(whole, one, j, rows);
  return whole;
}

/// A parameter gets a new value in the last micro-batch of each group; between, it is that of the group before.
void fillBetweenUpdates(const SessionOptions& options, const CompiledAnchor& anchor, const at::Tensor& before,
                        const std::vector<at::Tensor>& updates, at::Tensor& whole) {
  const int64_t count = options.device_iterations * options.gradient_accumulation;
  const std::vector<int64_t> chosen = returnedMicroBatches(anchor.mode, anchor.period, count);
  const auto rows = static_cast<int64_t>(chosen.size());
  for (int64_t j = 0; j < rows; ++j) {
    const int64_t updated = (chosen[j] + 1) / options.gradient_accumulation * options.gradient_accumulation - 1;
    rowsOf(whole, anchor.type, j, rows).copy_(updated < 0 ? before : updates[updated]);
  }
}

}  // namespace

std::vector<int64_t> returnedMicroBatches(OutputMode mode, int64_t period, int64_t count) {
  std::vector<int64_t> chosen;
  switch (mode) {
    case OutputMode::kFinal: return {count - 1};
    case OutputMode::kEveryN:
      for (int64_t k = period - 1; k < count; k += period) chosen.push_back(k);
      return chosen;
    case OutputMode::kAll:
    case OutputMode::kSum:
      for (int64_t k = 0; k < count; ++k) chosen.push_back(k);
      return chosen;
  }
  return chosen;
}

Results allocateResults(const SessionOptions& options, const Compiled& compiled) {
  const int64_t micro_batches = options.device_iterations * options.gradient_accumulation;
  const std::vector<int64_t> chosen = returnedMicroBatches(options.output_mode, options.output_period, micro_batches);
  const std::vector<int64_t> all = returnedMicroBatches(OutputMode::kAll, 1, micro_batches);
  Results results;
  results.bound.resize(compiled.executable.output_slots.size());
  size_t next_host = 0;
  for (const CompiledResult& result : compiled.results) {
    if (result.target < 0) {
      results.returned.push_back(compiled.host_results.at(next_host++));
      continue;
    }
    if (options.output_mode == OutputMode::kSum && chosen.size() > 1)
      results.sums.push_back({static_cast<int32_t>(results.returned.size()), /*is_anchor=*/false, result.target});
    results.returned.push_back(bindRows(result.type, chosen, micro_batches, results.bound.at(result.target)));
  }
  for (const WrittenArgument& written : compiled.written)
    results.written.push_back(bindRows(written.type, all, micro_batches, results.bound.at(written.target)));
  for (const CompiledAnchor& anchor : compiled.anchors) {
    const std::vector<int64_t> wanted = returnedMicroBatches(anchor.mode, anchor.period, micro_batches);
    std::vector<at::Tensor>& bound = results.bound.at(anchor.target);
    at::Tensor& before = results.previous.emplace_back();
    if (anchor.mode == OutputMode::kSum && wanted.size() > 1)
      results.sums.push_back({static_cast<int32_t>(results.anchored.size()), /*is_anchor=*/true, anchor.target});
    if (anchor.updated < 0) {
      results.anchored.push_back(bindRows(anchor.type, wanted, micro_batches, bound));
    } else {
      before = compiled.backend->external(anchor.updated).clone();
      bindRows(anchor.type, all, micro_batches, bound);
      results.anchored.push_back(emptyOf(anchor.type, static_cast<int64_t>(wanted.size())));
    }
  }
  return results;
}

void finishResults(const SessionOptions& options, const Compiled& compiled, Results& results) {
  for (size_t i = 0; i < compiled.anchors.size(); ++i) {
    const CompiledAnchor& anchor = compiled.anchors[i];
    std::vector<at::Tensor>& bound = results.bound[anchor.target];
    if (anchor.updated < 0) continue;
    fillBetweenUpdates(options, anchor, results.previous[i], bound, results.anchored[i]);
    if (anchor.mode != OutputMode::kSum) continue;
    for (size_t k = 0; k < bound.size(); ++k)
      bound[k] = rowsOf(results.anchored[i], anchor.type, static_cast<int64_t>(k), static_cast<int64_t>(bound.size()));
  }
  for (const Results::Sum& sum : results.sums) {
    const std::vector<at::Tensor>& rows = results.bound[sum.target];
    for (size_t k = 1; k < rows.size(); ++k) rows[0].add_(rows[k]);
    (sum.is_anchor ? results.anchored : results.returned)[sum.index] = rows[0].clone();
  }
}

void writeBack(const Compiled& compiled, const Results& results, const std::vector<at::Tensor>& inputs) {
  for (size_t j = 0; j < results.written.size(); ++j) {
    const at::Tensor& input = inputs[compiled.written[j].argument];
    input.copy_(results.written[j].view(input.sizes()));
  }
}

}  // namespace abele::host
