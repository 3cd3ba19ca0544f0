// abele::simulate, and the simulation of a model.
#include "abele/simulate.h"

#include "abele/model.h"
#include "api/core.h"
#include "base/error.h"
#include "compile/from_options.h"
#include "plan/memory_report.h"
#include "plan/predict.h"
#include "report/model_report.h"

namespace abele {
namespace {

plan::MemoryLimits limitsOf(const SimulationOptions& options) {
  const auto require = [](int64_t bytes) {
    ABELE_REQUIRE(bytes >= 0, E0404,
                  {.what = "the bytes of a device are negative", .found = cat(bytes), .expected = "0 or more"});
  };
  if (options.device_bytes) require(*options.device_bytes);
  for (const auto& [device, bytes] : options.bytes_of_device) require(bytes);
  return {options.device_bytes.value_or(-1), options.bytes_of_device};
}

}  // namespace

Simulation simulate(const std::string& costs, const SimulationOptions& options) {
  plan::PredictOptions predict;
  predict.training = options.training;
  predict.device_iterations = options.device_iterations;
  predict.accumulation = options.gradient_accumulation;
  predict.schedule = options.sharded    ? schedule::ScheduleKind::kSharded
                     : options.training ? compile::kindOf(options.schedule)
                                        : schedule::ScheduleKind::kForward;
  plan::Chain chain = plan::parseChain(costs);
  if (options.devices != 0) chain = plan::deal(chain, options.devices, options.chunks);
  const plan::Prediction prediction = plan::predict(chain, predict);
  const plan::MemoryLimits limits = limitsOf(options);
  std::vector<SimulatedMemory> memory;
  for (size_t w = 0; w < prediction.device_of.size(); ++w) {
    const int device = prediction.device_of[w];
    SimulatedMemory& m = memory.emplace_back(device, prediction.run.workers[w].peak_bytes);
    if (limits.of(device) >= 0) m.spare_bytes = limits.spare(device, m.peak_bytes);
  }
  return {prediction.run.step_ns,
          prediction.run.bubble(),
          prediction.peakBytes(),
          plan::spareBytes(prediction, limits) >= 0,
          std::move(memory),
          plan::predictionJson(prediction, limits),
          options.with_chart ? schedule::printSchedule(prediction.schedule) : "",
          options.with_trace ? plan::chromeTrace(prediction) : ""};
}

Simulation CompiledModel::simulate() const {
  const Call call = enter();
  const session::Session& session = call->compiled("simulate()");
  return abele::simulate(session.costs(), report::simulationOf(session));
}

}  // namespace abele
