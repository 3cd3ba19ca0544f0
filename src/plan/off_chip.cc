// Off-chip groups of a plan: their names, and which of them a device holds at once.
#include <algorithm>
#include <set>

#include "plan/plan.h"
#include "schedule/schedule.h"

namespace abele::plan {
namespace {

using Frame = std::pair<size_t, int64_t>;  // an off-chip group and a frame of its ring

std::set<Frame> framesOf(const Plan& plan, const schedule::Action& action) {
  std::set<Frame> frames;
  for (size_t g = 0; g < plan.off_chip.size(); ++g) {
    const OffChipGroup& group = plan.off_chip[g];
    if (std::ranges::find(group.users, Task{action.stage, action.direction}) == group.users.end()) continue;
    const bool is_ring = group.use == TensorUse::kActivations;
    frames.insert({g, is_ring ? action.micro_batch % plan.frames[group.stage] : 0});
  }
  return frames;
}

}  // namespace

const char* tensorUseName(TensorUse use) {
  static constexpr const char* kNames[] = {"weights", "state", "sums", "activations"};
  return kNames[static_cast<int>(use)];
}

std::vector<int64_t> fetchedFrames(const Plan& plan, size_t worker) {
  const std::vector<schedule::Action>& actions = plan.schedule.workers[worker];
  std::vector<int64_t> frames(plan.off_chip.size(), 0);
  int64_t most = 0;
  for (size_t i = 0; i < actions.size() && !plan.off_chip.empty(); ++i) {
    std::set<Frame> held = framesOf(plan, actions[i]);
    if (plan.options.locations.fetch_ahead) held.merge(framesOf(plan, actions[(i + 1) % actions.size()]));
    int64_t bytes = 0;
    for (const Frame& frame : held) bytes += plan.off_chip[frame.first].bytes;
    if (bytes <= most) continue;
    most = bytes;
    frames.assign(frames.size(), 0);
    for (const Frame& frame : held) ++frames[frame.first];
  }
  return frames;
}

std::vector<int64_t> peakDeviceBytes(const Plan& plan) {
  std::vector<int64_t> peak;
  for (size_t w = 0; w < plan.device_of.size(); ++w) {
    int64_t bytes = plan.persistent_bytes[w] + plan.turns() * plan.transient_bytes[w];
    for (size_t s = 0; s < plan.worker_of.size(); ++s)
      if (plan.worker_of[s] == static_cast<int>(w)) bytes += plan.frames[s] * plan.stash_bytes[s];
    for (const TaskRing& ring : plan.rings)
      if (plan.worker_of[ring.task.stage] == static_cast<int>(w)) bytes += ring.frames * ring.bytes;
    const std::vector<int64_t> frames = fetchedFrames(plan, w);
    for (size_t g = 0; g < frames.size(); ++g) bytes += frames[g] * plan.off_chip[g].bytes;
    peak.push_back(bytes);
  }
  return peak;
}

}  // namespace abele::plan
