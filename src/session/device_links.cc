#include "session/device_links.h"

#include <vector>

#include "compile/device_list.h"
#include "exe/links.h"
#include "runtime/collective/device_links.h"
#include "runtime/collective/peers.h"
#include "runtime/collective/shared_links.h"
#include "session/impl.h"
#include "session/processes.h"

namespace abele::host {
namespace {

/// The links of a replica in the order of their numbers, as all its processes find them.
std::vector<runtime::DeviceLink> linksOf(const exe::Executable& executable, const ProgramOptions& options) {
  const std::vector<c10::Device> devices =
      captureDevice(options).is_cpu() ? std::vector{captureDevice(options)} : devicesBySpace(options);
  const int64_t own = options.processes.index % options.processes.stages, offset = exe::linkOffset(executable);
  std::vector<runtime::DeviceLink> links;
  for (const exe::LinkUse& use : exe::linksOf(executable)) {
    runtime::DeviceLink& link = links.emplace_back(runtime::DeviceLink{use.link + offset, use.from, use.to});
    const int32_t worker = use.from == own ? use.from_worker : use.to == own ? use.to_worker : -1;
    if (worker < 0) continue;
    const auto space = static_cast<size_t>(executable.workers[static_cast<size_t>(worker)].space);
    link.own = devices[space % devices.size()];
  }
  return links;
}

}  // namespace

void connectLinks(const Compiled& compiled, const ProgramOptions& options, const std::function<bool()>& poll) {
  if (!compiled.peers || runtime::handover() != runtime::Handover::kDevice) return;
  const std::vector<runtime::DeviceLink> links = linksOf(compiled.executable, options);
  if (links.empty()) return;
  runtime::Peers& peers = *compiled.peers;
  waitForOthers(peers, poll, [&] { peers.connectDevices(links, options.processes.stages); });
}

}  // namespace abele::host
