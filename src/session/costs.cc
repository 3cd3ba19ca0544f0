// Session::costs: times of recent steps, for the simulator. All are medians over steps, so that steps during which
// other programs used the machine do not count.
#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "compile/placement.h"
#include "plan/cost.h"
#include "plan/predict.h"
#include "session/impl.h"

namespace abele::session {
namespace {

int64_t median(std::vector<int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Measurement {
 public:
  Measurement(const exe::Executable& executable, const std::deque<RecentStep>& steps)
      : exe_(executable), steps_(steps) {}

  /// Mean over a stage's actions, each the median of all steps; nothing where it never ran.
  std::optional<int64_t> timeOf(size_t stage, exe::Direction direction) const {
    int64_t sum = 0;
    std::set<std::pair<int32_t, int32_t>> tasks;  // several segments may be parts of one: src/exe/build/buckets.h
    for (size_t i = 0; !steps_.empty() && i < steps_.front().actions.size(); ++i) {
      const runtime::ActionTime& action = steps_.front().actions[i];
      const exe::Segment& segment = exe_.segments[action.segment];
      if (exe_.workers[action.worker].isLink()) continue;
      if (static_cast<size_t>(segment.stage) != stage || segment.direction != direction) continue;
      std::vector<int64_t> times;
      for (const RecentStep& step : steps_) times.push_back(step.actions[i].end_ns - step.actions[i].begin_ns);
      sum += median(std::move(times));
      tasks.emplace(segment.replica, action.micro_batch);
    }
    if (tasks.empty()) return std::nullopt;
    return sum / static_cast<int64_t>(tasks.size());
  }

  /// hop_ns, action_ns and host_ns of the simulator.
  void useOverheads(schedule::CostModel& costs) const {
    std::vector<int64_t> hops, gaps, host;
    for (const RecentStep& step : steps_) {
      addGaps(step, hops, gaps);
      int64_t begin = step.call_ns, end = 0;
      for (const runtime::ActionTime& action : step.actions) {
        begin = std::min(begin, action.begin_ns);
        end = std::max(end, action.end_ns);
      }
      host.push_back(step.call_ns - (end - begin));
    }
    costs.hop_ns = std::max<int64_t>(0, median(std::move(hops)));
    costs.action_ns = std::max<int64_t>(0, median(std::move(gaps)));
    costs.host_ns = std::max<int64_t>(0, median(std::move(host)));
  }

 private:
  // The time between two actions of a worker. If it waited, the time counts from the end of what it waited for.
  void addGaps(const RecentStep& step, std::vector<int64_t>& hops, std::vector<int64_t>& gaps) const {
    size_t planned = 0;
    for (const exe::WorkerProgram& worker : exe_.workers) planned += worker.actions.size();
    if (planned != step.actions.size()) return;  // several steps of the runtime, one after another
    std::vector<std::vector<int64_t>> ends(exe_.segments.size());
    for (const runtime::ActionTime& action : step.actions) ends[action.segment].push_back(action.end_ns);
    size_t i = 0;
    for (const exe::WorkerProgram& worker : exe_.workers)
      for (size_t k = 0; k < worker.actions.size(); ++k, ++i) {
        if (k == 0) continue;
        int64_t awaited = 0;
        for (const exe::Wait& wait : worker.actions[k].waits)
          awaited =
              std::max(awaited, ends[wait.segment][static_cast<size_t>(std::max<int64_t>(1, wait.completions)) - 1]);
        const int64_t before = step.actions[i - 1].end_ns;
        (awaited > before ? hops : gaps).push_back(step.actions[i].begin_ns - std::max(awaited, before));
      }
  }

  const exe::Executable& exe_;
  const std::deque<RecentStep>& steps_;
};

// A backward that ran as one is divided as capture saw it.
void useMeasured(const Measurement& measured, std::vector<schedule::StageCost>& costs) {
  for (size_t s = 0; s < costs.size(); ++s) {
    schedule::StageCost& cost = costs[s];
    if (auto time = measured.timeOf(s, exe::Direction::kForward)) cost.forward_ns = *time;
    if (auto time = measured.timeOf(s, exe::Direction::kUpdate)) cost.update_ns = *time;
    const auto backward = measured.timeOf(s, exe::Direction::kBackward);
    const auto weight_grad = measured.timeOf(s, exe::Direction::kWeightGrad);
    if (!backward && !weight_grad) continue;
    const int64_t whole = cost.backward_ns + cost.weight_grad_ns;
    const double share = whole > 0 ? static_cast<double>(cost.weight_grad_ns) / static_cast<double>(whole) : 0;
    cost.backward_ns = backward.value_or(0);
    cost.weight_grad_ns = weight_grad.value_or(0);
    if (weight_grad) continue;
    cost.weight_grad_ns = static_cast<int64_t>(share * static_cast<double>(*backward));
    cost.backward_ns -= cost.weight_grad_ns;
  }
}

}  // namespace

void Session::Impl::note(int64_t call_ns) {
  // Enough for a median; of very long steps fewer.
  constexpr size_t kMostSteps = 32, kMostActions = 1'000'000;
  recent.push_back({call_ns, last_step.actions});
  while (recent.size() > kMostSteps || (recent.size() > 1 && recent.size() * last_step.actions.size() > kMostActions))
    recent.pop_front();
}

int64_t Session::callNs() const {
  impl_->require("callNs()");
  return impl_->recent.empty() ? 0 : impl_->recent.back().call_ns;
}

std::string Session::costs() const {
  const Compiled& compiled = impl_->require("costs()");
  ir::Graph graph = this->graph();  // throws for programs that were not compiled here: those have no times
  passes::PassContext context;
  if (graph.training) passes::splitWeightGradient(graph, context);
  std::vector<schedule::StageCost> costs = plan::measuredCosts(graph);
  const Measurement measured(compiled.executable, impl_->recent);
  useMeasured(measured, costs);
  plan::PlanOptions options = compiled.plan.options;
  plan::Chain chain = plan::chainOf(graph, options, std::move(costs));
  chain.machine = compile::machineOf(impl_->options);
  measured.useOverheads(chain.costs);
  // Threads of a device that has several compete too, so that shares of cores are not known then.
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (compiled.executable.numComputing() > cores) chain.costs.cores = cores;
  return plan::chainJson(chain);
}

}  // namespace abele::session
