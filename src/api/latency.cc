// Latencies of a model's last call, from the moments at which its tensors moved. Source: spec executor.md section 8.
#include <algorithm>

#include "abele/model.h"

namespace abele {
namespace {

using Moments = std::vector<std::vector<double>>;

struct Counter {
  const Moments& moments;
  bool is_input;
  bool latest;  // of the tensors; else the earliest
};

/// Of result i; step: inputs between two results, which belong to the last of them.
double momentOf(const Counter& counter, size_t i, size_t step) {
  const size_t position = counter.is_input ? (i + 1) * step - 1 : i;
  double found = counter.moments.at(0).at(position);
  for (const std::vector<double>& times : counter.moments)
    found = counter.latest ? std::max(found, times.at(position)) : std::min(found, times.at(position));
  return found;
}

Latency between(const ModelTimes& times, const Counter& first, const Counter& second) {
  size_t number = times.output.empty() ? 0 : times.output[0].size();
  for (const std::vector<double>& each : times.output) number = std::min(number, each.size());
  if (number == 0 || times.input.empty() || times.input[0].empty()) return {};
  const size_t step = times.input[0].size() / number;
  Latency latency;
  for (size_t i = 0; i < number; ++i) {
    const double took = momentOf(second, i, step) - momentOf(first, i, step);
    latency.least = i == 0 ? took : std::min(latency.least, took);
    latency.most = i == 0 ? took : std::max(latency.most, took);
    latency.average += took / static_cast<double>(number);
  }
  latency.average = std::clamp(latency.average, latency.least, latency.most);  // equal times, rounded
  return latency;
}

}  // namespace

Latency CompiledModel::getLatency() const {
  const ModelTimes times = getPerfCounters();
  return between(times, {times.input, true, false}, {times.output_complete, false, true});
}
Latency CompiledModel::getHostIpuLatency() const {
  const ModelTimes times = getPerfCounters();
  return between(times, {times.input, true, false}, {times.input_complete, true, true});
}
Latency CompiledModel::getComputeLatency() const {
  const ModelTimes times = getPerfCounters();
  return between(times, {times.input_complete, true, true}, {times.output, false, true});
}
Latency CompiledModel::getIpuHostLatency() const {
  const ModelTimes times = getPerfCounters();
  return between(times, {times.output, false, false}, {times.output_complete, false, true});
}

}  // namespace abele
