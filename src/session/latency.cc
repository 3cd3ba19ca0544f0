#include "session/latency.h"

#include <algorithm>

namespace abele::session {
namespace {

using Moments = std::vector<std::vector<double>>;

struct Counter {
  const Moments& moments;
  bool is_input;
  bool latest;  // take the latest of the tensors; false: the earliest
};

/// The moment of result i. step: number of inputs per result; the last of them counts.
double momentOf(const Counter& counter, size_t i, size_t step) {
  const size_t position = counter.is_input ? (i + 1) * step - 1 : i;
  double found = counter.moments.at(0).at(position);
  for (const std::vector<double>& times : counter.moments)
    found = counter.latest ? std::max(found, times.at(position)) : std::min(found, times.at(position));
  return found;
}

Latency between(const PerfCounters& times, const Counter& first, const Counter& second) {
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
  latency.average = std::clamp(latency.average, latency.least, latency.most);  // rounding may move it outside
  return latency;
}

}  // namespace

Latency latencyOf(const PerfCounters& times, Way way) {
  const Counter asked{times.input, true, false}, given{times.input_complete, true, true};
  const Counter ready{times.output, false, way == Way::kCompute}, complete{times.output_complete, false, true};
  switch (way) {
    case Way::kHostToDevice: return between(times, asked, given);
    case Way::kCompute: return between(times, given, ready);
    case Way::kDeviceToHost: return between(times, ready, complete);
    case Way::kAll: break;
  }
  return between(times, asked, complete);
}

}  // namespace abele::session
