// abele::simulate.
#include "abele/simulate.h"

#include "base/error.h"
#include "host/public_access.h"
#include "plan/predict.h"

namespace abele {

Simulation simulate(const std::string& costs, const SimulationOptions& options) {
  plan::PredictOptions predict;
  predict.training = options.training;
  predict.device_iterations = options.device_iterations;
  predict.accumulation = options.gradient_accumulation;
  predict.schedule = options.sharded    ? plan::ScheduleKind::kSharded
                     : options.training ? kindOf(options.schedule)
                                        : plan::ScheduleKind::kForward;
  plan::Chain chain = plan::parseChain(costs);
  if (options.devices != 0) chain = plan::deal(chain, options.devices, options.chunks);
  const plan::Prediction prediction = plan::predict(chain, predict);
  return {prediction.run.step_ns,
          prediction.run.bubble(),
          prediction.peakBytes(),
          plan::predictionJson(prediction),
          options.with_chart ? plan::printSchedule(prediction.schedule) : "",
          options.with_trace ? plan::chromeTrace(prediction) : ""};
}

}  // namespace abele
