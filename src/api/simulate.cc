// abele::simulate.
#include "abele/simulate.h"

#include <algorithm>

#include "base/error.h"
#include "compile/from_options.h"
#include "plan/predict.h"

namespace abele {
namespace {

int64_t peakOf(const std::vector<plan::MemoryPoint>& points) {
  int64_t peak = 0;
  for (const plan::MemoryPoint& point : points) peak = std::max(peak, point.bytes);
  return peak;
}

}  // namespace

Simulation simulate(const std::string& costs, const SimulationOptions& options) {
  plan::PredictOptions predict;
  predict.training = options.training;
  predict.device_iterations = options.device_iterations;
  predict.accumulation = options.gradient_accumulation;
  predict.schedule = options.sharded    ? plan::ScheduleKind::kSharded
                     : options.training ? host::kindOf(options.schedule)
                                        : plan::ScheduleKind::kForward;
  plan::Chain chain = plan::parseChain(costs);
  if (options.devices != 0) chain = plan::deal(chain, options.devices, options.chunks);
  const plan::Prediction prediction = plan::predict(chain, predict);
  std::vector<SimulatedMemory> memory;
  bool fits = true;
  for (size_t w = 0; w < prediction.device_of.size(); ++w) {
    const int device = prediction.device_of[w];
    const auto own = options.bytes_of_device.find(device);
    const std::optional<int64_t> limit =
        own == options.bytes_of_device.end() ? options.device_bytes : std::optional(own->second);
    SimulatedMemory& m = memory.emplace_back(device, peakOf(prediction.memory[w]));
    if (limit) m.spare_bytes = *limit - m.peak_bytes;
    fits = fits && m.spare_bytes.value_or(0) >= 0;
  }
  return {prediction.run.step_ns,
          prediction.run.bubble(),
          prediction.peakBytes(),
          fits,
          std::move(memory),
          plan::predictionJson(prediction),
          options.with_chart ? plan::printSchedule(prediction.schedule) : "",
          options.with_trace ? plan::chromeTrace(prediction) : ""};
}

}  // namespace abele
