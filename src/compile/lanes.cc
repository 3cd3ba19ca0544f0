#include "compile/lanes.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "compile/device_list.h"
#include "plan/cost.h"
#include "plan/lanes.h"

namespace abele::host {
namespace {

// Of an instruction, estimated, on average: what a call costs beside its work is a large part of smaller ones, and
// threads share larger ones well already (docs/performance.md).
constexpr int64_t kSmallNs = 20'000;
// What lanes may add to the memory of a device: this, or this part of what lives as long as the program.
constexpr int64_t kAddedBytes = int64_t{8} << 20;
constexpr int64_t kAddedPart = 8;

std::string whyNone(const ir::Graph& graph, const ProgramOptions& options, bool watched) {
  if (options.lanes == 1) return "abele.lanes is 1";
  if (options.fusion == Fusion::kOff) return "fusion is off";
  const std::vector<c10::Device> devices = deviceList(options.device);
  if (!std::all_of(devices.begin(), devices.end(), [](const c10::Device& device) { return device.is_cpu(); }))
    return cat("the devices are ", options.device);
  if (watched) return "each micro-batch is compared with eager PyTorch";
  if (options.processes.count > 1) return cat(options.processes.count, " processes work together");
  const plan::Locations& l = options.locations;
  if (l.weights.off_chip || l.optimizer_state.off_chip || l.accumulators.off_chip || l.activations.off_chip)
    return "tensors leave the device between tasks";
  return plan::whyNoLanes(graph);
}

plan::PlanOptions withLanes(plan::PlanOptions options, bool training, int64_t lanes) {
  (training ? options.accumulation : options.device_iterations) /= lanes;
  options.lanes = lanes;
  return options;
}

int64_t averageNs(const ir::Graph& graph) {
  int64_t ns = 0, count = 0;
  for (const plan::StageCost& cost : plan::estimateCosts(graph))
    ns += cost.forward_ns + cost.backward_ns + cost.weight_grad_ns;
  for (const ir::Node& node : graph.nodes) count += !node.is_view && node.direction != ir::Direction::kUpdate;
  return ns / std::max<int64_t>(count, 1);
}

int64_t bytesOf(const plan::Plan& plan) {
  const std::vector<int64_t> bytes = plan::peakDeviceBytes(plan);
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace

LaneChoice planWithLanes(const ir::Graph& graph, const plan::PlanOptions& planned, const ProgramOptions& options,
                         bool watched) {
  const int64_t group = options.training ? planned.accumulation : planned.device_iterations;
  plan::Plan plain = plan::makePlan(graph, planned);
  const auto none = [&](std::string why) {
    if (options.lanes > 1)
      log::warn("abele.lanes is ", options.lanes, ", but micro-batches are worked on one by one, since ", why);
    return LaneChoice{std::move(plain), std::move(why)};
  };
  if (group == 1) return none("there is one micro-batch");
  if (std::string why = whyNone(graph, options, watched); !why.empty()) return none(std::move(why));
  const bool chooses = options.lanes == 0;
  if (chooses && options.device_memory.any()) return none("the memory of devices is limited");
  if (chooses && plain.device_of.size() > 1) return none("a pipeline would wait longer");
  if (const int64_t ns = averageNs(graph); chooses && ns > kSmallNs)
    return none(cat("an instruction takes about ", ns, " ns"));
  const int64_t most = bytesOf(plain) + std::max(kAddedBytes, plain.totalPersistentBytes() / kAddedPart);
  for (int64_t lanes = chooses ? group : std::min(group, options.lanes); lanes > 1; --lanes) {
    if (group % lanes != 0) continue;
    plan::Plan with = plan::makePlan(graph, withLanes(planned, options.training, lanes));
    if (!chooses || bytesOf(with) <= most) return {std::move(with), cat(lanes, " of ", group, " side by side")};
  }
  return none(chooses ? cat("more than one side by side needs more than ", most, " bytes")
                      : cat("no number from 2 to ", options.lanes, " divides ", group));
}

}  // namespace abele::host
