// abele::simulate, and the costs of a compiled session.
#include "abele/simulate.h"

#include <map>

#include "base/error.h"
#include "host/public_access.h"
#include "host/session_impl.h"
#include "plan/cost.h"
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
          plan::printSchedule(prediction.schedule),
          plan::chromeTrace(prediction)};
}

}  // namespace abele

namespace abele::host {
namespace {

using ir::Direction;

// Mean times of the last step's actions replace those of capture. A backward that ran as one is divided as capture saw
// it.
void useLastStep(const exe::Executable& executable, const runtime::StepReport& step,
                 std::vector<plan::StageCost>& costs) {
  struct Mean {
    int64_t ns = 0, count = 0;
  };
  std::map<std::pair<int32_t, exe::Direction>, Mean> means;
  for (const runtime::ActionTime& action : step.actions) {
    const exe::Segment& segment = executable.segments[action.segment];
    Mean& mean = means[{segment.stage, segment.direction}];
    mean.ns += action.end_ns - action.begin_ns;
    ++mean.count;
  }
  for (size_t s = 0; s < costs.size(); ++s) {
    auto take = [&](exe::Direction direction, int64_t& ns) {
      auto it = means.find({static_cast<int32_t>(s), direction});
      if (it == means.end()) return false;
      ns = it->second.ns / it->second.count;
      return true;
    };
    take(exe::Direction::kForward, costs[s].forward_ns);
    take(exe::Direction::kUpdate, costs[s].update_ns);
    const int64_t whole = costs[s].backward_ns + costs[s].weight_grad_ns;
    const double share = whole > 0 ? static_cast<double>(costs[s].weight_grad_ns) / static_cast<double>(whole) : 0;
    const bool ran = take(exe::Direction::kBackward, costs[s].backward_ns);
    if (!ran || take(exe::Direction::kWeightGrad, costs[s].weight_grad_ns)) continue;
    costs[s].weight_grad_ns = static_cast<int64_t>(share * static_cast<double>(costs[s].backward_ns));
    costs[s].backward_ns -= costs[s].weight_grad_ns;
  }
}

}  // namespace

std::string Session::costs() const {
  const Compiled& compiled = impl_->require("costs()");
  ir::Graph graph = this->graph();  // throws for programs that were not compiled here: those have no times
  passes::PassContext context;
  if (graph.training) passes::splitWeightGradient(graph, context);
  std::vector<plan::StageCost> costs = plan::measuredCosts(graph);
  useLastStep(compiled.executable, impl_->last_step, costs);
  plan::Chain chain;
  chain.costs = plan::costModelOf(compiled.plan, std::move(costs));
  for (int worker : compiled.plan.worker_of) chain.device_of.push_back(compiled.plan.device_of[worker]);
  return plan::chainJson(chain);
}

}  // namespace abele::host
