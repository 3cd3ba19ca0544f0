#include "compile/lanes.h"

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "compile/device_list.h"
#include "plan/cost.h"
#include "plan/explain.h"
#include "plan/lanes.h"

namespace abele::host {
namespace {

// Micro-batches lie side by side only if that is predicted to save at least this share of the step: estimates are not
// better than that, and what lies side by side needs more of the caches.
constexpr double kWorthwhile = 0.05;
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
  if (options.auto_loss_scaling) return "automatic loss scaling counts the gradients of each micro-batch";
  const plan::Locations& l = options.locations;
  if (l.weights.off_chip || l.optimizer_state.off_chip || l.accumulators.off_chip || l.activations.off_chip)
    return "tensors leave the device between tasks";
  return plan::whyNoLanes(graph);
}

plan::PlanOptions withLanes(plan::PlanOptions options, bool training, int64_t lanes) {
  (training ? options.accumulation : options.device_iterations) /= lanes;
  options.lanes = lanes;
  for (int64_t& held : options.most_held) held = std::max<int64_t>(held / lanes, 1);
  return options;
}

// Why a plan takes too much of a device's memory; empty if it does not.
std::string excessOf(const plan::Plan& with, const plan::Plan& plain) {
  const std::vector<int64_t> needed = plan::peakDeviceBytes(with), before = plan::peakDeviceBytes(plain);
  for (size_t w = 0; w < needed.size(); ++w) {
    const int64_t most = before[w] + std::max(kAddedBytes, plain.persistent_bytes[w] / kAddedPart);
    if (needed[w] > most)
      return cat("needs ", needed[w], " bytes on device ", with.device_of[w], ", where ", most, " are taken at most");
  }
  return {};
}

struct Candidate {
  int64_t lanes = 1;
  int64_t step_ns = 0;  // predicted
};

// The shortest predicted step first, of equals that of fewer lanes.
std::vector<Candidate> candidates(const ir::Graph& graph, const plan::PlanOptions& planned, int64_t group,
                                  const ProgramOptions& options) {
  const plan::LaneCosts costs = plan::laneCosts(graph, planned.costs);
  std::vector<Candidate> found;
  for (int64_t lanes = 1; lanes <= group; ++lanes)
    if (group % lanes == 0)
      found.push_back({lanes, plan::predictStepNs(graph, withLanes(planned, options.training, lanes), costs)});
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.step_ns < b.step_ns; });
  return found;
}

std::string textOf(const Candidate& candidate, int64_t group, int64_t plain_ns) {
  return cat(candidate.lanes, " of ", group, " side by side are predicted to take ",
             plan::millisecondsText(candidate.step_ns), " ms a step, one by one ", plan::millisecondsText(plain_ns),
             " ms");
}

// Sets `with` to the plan of the best number that is worth it and fits the memory; else leaves it. Returns: why.
std::string choose(const ir::Graph& graph, const plan::PlanOptions& planned, int64_t group,
                   const ProgramOptions& options, const plan::Plan& plain, std::optional<plan::Plan>& with) {
  const std::vector<Candidate> found = candidates(graph, planned, group, options);
  const auto alone =
      std::find_if(found.begin(), found.end(), [](const Candidate& candidate) { return candidate.lanes == 1; });
  const int64_t plain_ns = alone->step_ns;
  std::string refused;
  for (const Candidate& candidate : found) {
    if (static_cast<double>(candidate.step_ns) > (1 - kWorthwhile) * static_cast<double>(plain_ns)) break;
    plan::Plan tried = plan::makePlan(graph, withLanes(planned, options.training, candidate.lanes));
    std::string why = textOf(candidate, group, plain_ns);
    const std::string excess = excessOf(tried, plain);
    if (excess.empty()) {
      with = std::move(tried);
      return why;
    }
    refused += cat(refused.empty() ? "" : "; ", why, ", which ", excess);
  }
  if (!refused.empty()) return refused;
  const Candidate& other = found[found.front().lanes == 1 ? 1 : 0];
  return cat("no number is predicted to save much: ", textOf(other, group, plain_ns));
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
  if (chooses) {
    std::optional<plan::Plan> with;
    std::string why = choose(graph, planned, group, options, plain, with);
    return LaneChoice{std::move(with ? *with : plain), std::move(why)};
  }
  for (int64_t lanes = std::min(group, options.lanes); lanes > 1; --lanes)
    if (group % lanes == 0)
      return LaneChoice{plan::makePlan(graph, withLanes(planned, options.training, lanes)),
                        cat(lanes, " of ", group, " side by side, as abele.lanes asks")};
  return none(cat("no number from 2 to ", options.lanes, " divides ", group));
}

}  // namespace abele::host
