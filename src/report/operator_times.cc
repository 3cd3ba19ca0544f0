#include "report/operator_times.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "plan/liveness.h"
#include "plan/operator_cost.h"
#include "session/impl.h"

namespace abele::report {
namespace {

using StageDirection = std::pair<int32_t, size_t>;  // stage, direction

/// What the segments of each stage and direction took, ns.
std::map<StageDirection, double> measured(const exe::Executable& executable, const session::RecentStep& step) {
  std::map<StageDirection, double> sums;
  for (const runtime::ActionTime& action : step.actions) {
    if (executable.workers[action.worker].isLink()) continue;
    const exe::Segment& segment = executable.segments[action.segment];
    sums[{segment.stage, static_cast<size_t>(segment.direction)}] +=
        static_cast<double>(action.end_ns - action.begin_ns);
  }
  return sums;
}

std::vector<TimeShare> longestFirst(const std::map<std::string, TimeShare>& shares) {
  std::vector<TimeShare> sorted;
  for (const auto& [name, share] : shares) {
    sorted.push_back(share);
    sorted.back().name = name;
  }
  std::ranges::stable_sort(sorted, std::greater(), &TimeShare::sum);
  return sorted;
}

}  // namespace

OperatorTimes operatorTimes(session::Session& session) {
  const auto& parts = session.parts();
  const ir::Graph& graph = session.graph();
  if (parts.recent.empty()) return {};
  const std::map<StageDirection, double> taken = measured(session.executable(), parts.recent.back());
  struct Work {
    const ir::Node* node;
    double ns;
  };
  std::map<StageDirection, std::vector<Work>> work;
  std::map<StageDirection, double> whole;
  for (const ir::Node& node : graph.nodes) {
    if (node.is_view || node.stage < 0 || plan::isTransfer(node)) continue;
    const StageDirection place{node.stage, static_cast<size_t>(node.direction)};
    const int64_t ns = node.time_ns > 0 ? node.time_ns : plan::estimateNodeNs(graph, node);
    work[place].push_back({&node, static_cast<double>(ns)});
    whole[place] += static_cast<double>(ns);
  }
  std::map<std::string, TimeShare> operators, layers;
  for (const auto& [place, ns] : taken) {
    if (whole[place] <= 0) {  // nothing but what the runtime adds
      for (TimeShare* share : {&operators["(no operator)"], &layers["(no operator)"]}) {
        ++share->count;
        share->us[place.second] += ns / 1e3;
      }
      continue;
    }
    for (const Work& each : work[place])
      for (TimeShare* share : {&operators[each.node->op], &layers[each.node->scope]}) {
        ++share->count;
        share->us[place.second] += each.ns / whole[place] * ns / 1e3;
      }
  }
  return {longestFirst(operators), longestFirst(layers)};
}

}  // namespace abele::report
