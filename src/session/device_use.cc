#include "session/device_use.h"

#include <algorithm>
#include <limits>

#include "compile/device_list.h"
#include "session/impl.h"

namespace abele::session {

DeviceUse deviceUse(Session& session) {
  const auto& impl = session.parts();
  const Compiled& compiled = impl.require("deviceUse()");
  const bool is_split = impl.options.processes.stages > 1;
  const int64_t own = impl.options.processes.index % std::max<int64_t>(1, impl.options.processes.stages);
  int64_t first = is_split ? std::numeric_limits<int64_t>::max() : 0, last = 0;
  for (const exe::WorkerProgram& worker : compiled.executable.workers) {
    if (worker.isLink() || (is_split && worker.process != own)) continue;
    first = std::min<int64_t>(first, worker.device);
    last = std::max<int64_t>(last, worker.device);
  }
  DeviceUse use{.first = std::min(first, last), .count = last - std::min(first, last) + 1};
  const std::vector<c10::Device> devices = compile::devicesBySpace(impl.options);
  for (int64_t d = use.first; d < use.first + use.count; ++d) {
    const auto on_it = std::ranges::find_if(compiled.executable.workers,
                                            [&](const exe::WorkerProgram& w) { return !w.isLink() && w.device == d; });
    const int32_t space = on_it == compiled.executable.workers.end() ? 0 : on_it->space;
    use.targets.push_back(devices[static_cast<size_t>(space) % devices.size()].str());
  }
  return use;
}

void busyTimes(Session& session, const DeviceUse& use, std::vector<int64_t>& busy_ns) {
  const auto& impl = session.parts();
  busy_ns.assign(static_cast<size_t>(use.count), 0);
  if (!impl.compiled) return;
  const std::vector<exe::WorkerProgram>& workers = impl.compiled->executable.workers;
  for (const runtime::ActionTime& action : impl.last_step.actions) {
    const exe::WorkerProgram& worker = workers[action.worker];
    const int64_t device = worker.device - use.first;
    if (worker.isLink() || device < 0 || device >= use.count) continue;
    busy_ns[device] += action.end_ns - action.begin_ns;
  }
}

}  // namespace abele::session
