// The micro-batches that a call returns, and the shape of the results. Source: spec executor.md section 3.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "compile/tensors.h"
#include "session/impl.h"

namespace abele::session {
namespace {

/// Shape of `count` results of one micro-batch: multiplies dim 0, and turns a scalar into a vector. One result keeps
/// its shape.
std::vector<int64_t> combinedSizes(std::vector<int64_t> one, int64_t count) {
  if (count == 1) return one;
  if (one.empty()) return {count};
  one[0] *= count;
  return one;
}

at::Tensor emptyOf(const Type& one, int64_t count) {
  return at::empty(combinedSizes(one.sizes, count), at::TensorOptions(static_cast<at::ScalarType>(one.dtype)));
}

/// The rows of result `index` of `count` in the tensor that emptyOf made.
at::Tensor rowsOf(const at::Tensor& whole, const Type& one, int64_t index, int64_t count) {
  if (count == 1) return whole;
  if (one.sizes.empty()) return whole.select(0, index);
  return whole.narrow(0, index * one.sizes[0], one.sizes[0]);
}

/// The destinations of one target's micro-batches, by replica and micro-batch.
class Target {
 public:
  Target(const compile::ProgramOptions& options, const Compiled& compiled, Results& results, int32_t target)
      : micro_batches_(options.device_iterations * options.gradient_accumulation),
        outputs_(compiled.executable.numOutputs()),
        results_(results),
        target_(target) {
    const int64_t own = options.processes.index % options.processes.stages;
    const int32_t reader = compiled.readers[target];
    is_reader = reader == device::DeviceOptions::kAllProcesses || reader == own;
    is_bound = is_reader || compiled.makers[target] == own;
  }

  bool is_reader;  // this process gets the result
  bool is_bound;   // a device of this process makes it, or this process gets it

  at::Tensor& at(const Position& p) {
    std::vector<at::Tensor>& rows = results_.bound.at(p.replica * outputs_ + target_);
    rows.resize(micro_batches_);
    return rows[p.micro_batch];
  }

  Results& results() { return results_; }

  /// Binds the wanted micro-batches to the rows of a new tensor, and returns the tensor.
  at::Tensor bind(const Type& one, const std::vector<Position>& chosen) {
    const auto rows = static_cast<int64_t>(chosen.size());
    at::Tensor whole = emptyOf(one, rows);
    for (int64_t j = 0; j < rows; ++j) at(chosen[j]) = rowsOf(whole, one, j, rows);
    return whole;
  }

  /// Binds all micro-batches of each replica to one row, where the device adds them up in their order.
  at::Tensor bindSums(const Type& one, const std::vector<Position>& chosen, int64_t replicas) {
    at::Tensor sums = emptyOf(one, replicas);
    std::vector<at::Tensor> of_replica;
    for (int64_t r = 0; r < replicas; ++r) of_replica.push_back(rowsOf(sums, one, r, replicas));
    for (const Position& p : chosen) at(p) = of_replica[p.replica];
    return sums;
  }

 private:
  int64_t micro_batches_;
  int64_t outputs_;
  Results& results_;
  int32_t target_;
};

/// Returns true if the devices add up the micro-batches of a result, so that a process sends one sum. Each step of the
/// runtime starts new sums, so a call of several steps adds them up afterwards.
bool addsOnDevices(const compile::ProgramOptions& options, compile::OutputMode mode) {
  return mode == compile::OutputMode::kSum && compile::stepsPerCall(options) == 1;
}

/// The tensor that a call returns of one value: the rows of the chosen micro-batches, or sums that are computed later.
at::Tensor returnedOf(Results& results, const Type& one, compile::OutputMode mode, int64_t replicas,
                      const std::vector<Position>& chosen, const std::vector<at::Tensor>& rows,
                      const at::Tensor& whole) {
  if (mode != compile::OutputMode::kSum || static_cast<int64_t>(chosen.size()) == replicas) return whole;
  at::Tensor sums = emptyOf(one, replicas);
  for (int64_t r = 0; r < replicas; ++r) {
    Results::Sum& sum = results.sums.emplace_back();
    sum.sum = rowsOf(sums, one, r, replicas);
    for (size_t j = 0; j < chosen.size(); ++j)
      if (chosen[j].replica == r) sum.rows.push_back(rows[j]);
  }
  return sums;
}

/// Splits a tensor of emptyOf into its rows.
std::vector<at::Tensor> splitRows(const at::Tensor& whole, const Type& one, size_t count) {
  std::vector<at::Tensor> rows;
  for (size_t j = 0; j < count; ++j)
    rows.push_back(rowsOf(whole, one, static_cast<int64_t>(j), static_cast<int64_t>(count)));
  return rows;
}

/// Binds a value that every micro-batch makes. Returns what a call returns of it; undefined if another process gets it.
at::Tensor bindReturned(const compile::ProgramOptions& options, Target& target, const Type& one,
                        compile::OutputMode mode, const std::vector<Position>& chosen) {
  if (!target.is_bound) return {};
  if (addsOnDevices(options, mode)) {
    const at::Tensor sums = target.bindSums(one, chosen, options.replicas);
    return target.is_reader ? sums : at::Tensor();
  }
  const at::Tensor whole = target.bind(one, chosen);
  if (!target.is_reader) return {};
  return returnedOf(target.results(), one, mode, options.replicas, chosen, splitRows(whole, one, chosen.size()), whole);
}

/// The replica that updates the external which this replica uses.
int64_t updaterOf(const exe::Executable& executable, int32_t external, int64_t replica) {
  int32_t first = 0;
  while (executable.externals[external].slotOf(first) != executable.externals[external].slotOf(replica)) ++first;
  return first;
}

/// If several replicas take the same rows, the first of them writes the rows.
void bindWritten(const compile::ProgramOptions& options, const Compiled& compiled, Results& results) {
  const int64_t parts = compiled.executable.inputParts();
  std::vector<Position> writers(static_cast<size_t>(compile::inputMicroBatches(options)));
  for (int32_t r = static_cast<int32_t>(options.replicas) - 1; r >= 0; --r)
    for (int64_t k = compiled.executable.inputPart(r); k < compile::inputMicroBatches(options); k += parts)
      writers[k] = {r, k / parts};
  for (const compile::WrittenArgument& written : compiled.written)
    results.written.push_back(Target(options, compiled, results, written.target).bind(written.type, writers));
}

void bindAnchor(const compile::ProgramOptions& options, const Compiled& compiled, const compile::CompiledAnchor& anchor,
                Results& results) {
  const std::vector<Position> wanted = returnedMicroBatches(options, anchor.mode, anchor.period);
  std::vector<at::Tensor>& previous = results.previous.emplace_back();
  std::vector<at::Tensor>& between = results.between.emplace_back();
  Target target(options, compiled, results, anchor.target);
  if (anchor.updated < 0) {
    results.anchored.push_back(bindReturned(options, target, anchor.type, anchor.mode, wanted));
    return;
  }
  for (int64_t r = 0; r < options.replicas; ++r)  // all processes take part in the read
    previous.push_back(compiled.backend->value(anchor.updated, static_cast<int32_t>(r)));
  // The value is made once per update.
  if (target.is_bound)
    target.bind(anchor.type,
                returnedMicroBatches(options, compile::OutputMode::kEveryN, options.gradient_accumulation));
  if (!target.is_reader) {
    results.anchored.emplace_back();
    return;
  }
  const at::Tensor whole = emptyOf(anchor.type, static_cast<int64_t>(wanted.size()));
  between = splitRows(whole, anchor.type, wanted.size());
  results.anchored.push_back(returnedOf(results, anchor.type, anchor.mode, options.replicas, wanted, between, whole));
}

/// A parameter gets a new value in the last micro-batch of each group. Before that, it has the previous group's value.
void fillBetweenUpdates(const compile::ProgramOptions& options, const Compiled& compiled, size_t index,
                        Results& results) {
  const compile::CompiledAnchor& anchor = compiled.anchors[index];
  if (!results.anchored[index].defined()) return;
  const std::vector<Position> chosen = returnedMicroBatches(options, anchor.mode, anchor.period);
  const int64_t accumulation = options.gradient_accumulation;
  for (size_t j = 0; j < chosen.size(); ++j) {
    const int64_t updated = (chosen[j].micro_batch + 1) / accumulation * accumulation - 1;
    const int64_t updater = updaterOf(compiled.executable, anchor.updated, chosen[j].replica);
    results.between[index][j].copy_(updated < 0
                                        ? results.previous[index][chosen[j].replica]
                                        : Target(options, compiled, results, anchor.target).at({updater, updated}));
  }
}

}  // namespace

std::vector<Position> returnedMicroBatches(const compile::ProgramOptions& options, compile::OutputMode mode,
                                           int64_t period) {
  const int64_t count = options.device_iterations * options.gradient_accumulation;
  int64_t first = 0, step = 1;
  if (mode == compile::OutputMode::kFinal) first = count - 1;
  if (mode == compile::OutputMode::kEveryN) {
    first = period - 1;
    step = period;
  }
  std::vector<Position> chosen;
  for (int64_t k = first; k < count; k += step)
    for (int64_t r = 0; r < options.replicas; ++r) chosen.push_back({r, k});
  return chosen;
}

void setReaders(Compiled& compiled, const compile::ProgramOptions& options) {
  const exe::Executable& executable = compiled.executable;
  compiled.makers = exe::processesOfOutputs(executable);
  compiled.makers.resize(static_cast<size_t>(executable.numOutputs()));  // the outputs of all replicas are alike
  compiled.readers.assign(compiled.makers.size(), device::DeviceOptions::kAllProcesses);
  if (options.output_rank == compile::OutputRank::kAll) return;
  const auto readerOf = [&](int32_t target) {
    switch (options.output_rank) {
      case compile::OutputRank::kAll: break;
      case compile::OutputRank::kFirst: return 0;
      case compile::OutputRank::kLast: return static_cast<int32_t>(executable.stage_processes) - 1;
      case compile::OutputRank::kOwner: return compiled.makers[target];
    }
    return device::DeviceOptions::kAllProcesses;
  };
  // Only results and anchors have a reader. An argument that forward writes goes to all processes: the caller owns it,
  // and may pass it as the next batch.
  for (const compile::CompiledResult& result : compiled.results)
    if (result.target >= 0) compiled.readers[result.target] = readerOf(result.target);
  for (const compile::CompiledAnchor& anchor : compiled.anchors)
    compiled.readers[anchor.target] = readerOf(anchor.target);
}

Results allocateResults(const compile::ProgramOptions& options, const Compiled& compiled) {
  const std::vector<Position> chosen = returnedMicroBatches(options, options.output_mode, options.output_period);
  Results results;
  results.bound.resize(compiled.executable.output_slots.size());
  size_t next_host = 0;
  for (const compile::CompiledResult& result : compiled.results) {
    if (result.target < 0) {
      results.returned.push_back(compiled.host_results.at(next_host++));
      continue;
    }
    Target target(options, compiled, results, result.target);
    results.returned.push_back(bindReturned(options, target, result.type, options.output_mode, chosen));
  }
  bindWritten(options, compiled, results);
  for (const compile::CompiledAnchor& anchor : compiled.anchors) bindAnchor(options, compiled, anchor, results);
  return results;
}

void finishResults(const compile::ProgramOptions& options, const Compiled& compiled, Results& results) {
  for (size_t i = 0; i < compiled.anchors.size(); ++i)
    if (compiled.anchors[i].updated >= 0) fillBetweenUpdates(options, compiled, i, results);
  for (Results::Sum& sum : results.sums) {
    sum.sum.copy_(sum.rows[0]);
    for (size_t k = 1; k < sum.rows.size(); ++k) sum.sum.add_(sum.rows[k]);
  }
}

std::vector<std::vector<at::Tensor>> partOf(const Results& results, int64_t index, int64_t count) {
  if (count == 1) return results.bound;
  std::vector<std::vector<at::Tensor>> parts;
  for (const std::vector<at::Tensor>& rows : results.bound) {
    const auto size = static_cast<int64_t>(rows.size()) / count;
    parts.emplace_back(rows.begin() + index * size, rows.begin() + (index + 1) * size);
  }
  return parts;
}

void writeBack(const Compiled& compiled, const Results& results, const std::vector<at::Tensor>& inputs) {
  for (size_t j = 0; j < results.written.size(); ++j) {
    const at::Tensor& input = inputs[compiled.written[j].argument];
    input.copy_(results.written[j].view(input.sizes()));
  }
}

}  // namespace abele::session
