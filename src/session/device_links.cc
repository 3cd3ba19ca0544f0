#include <vector>

#include "collective/device_links.h"
#include "collective/peers.h"
#include "collective/shared_links.h"
#include "compile/device_list.h"
#include "exe/links.h"
#include "processes/processes.h"
#include "session/impl.h"

namespace abele::session {
namespace {

/// The links of a replica in the order of their numbers, as all its processes find them.
std::vector<collective::DeviceLink> linksOf(const exe::Executable& executable, const compile::ProgramOptions& options) {
  const std::vector<c10::Device> devices = compile::captureDevice(options).is_cpu()
                                               ? std::vector{compile::captureDevice(options)}
                                               : compile::devicesBySpace(options);
  const int64_t own = options.processes.index % options.processes.stages, offset = exe::linkOffset(executable);
  std::vector<collective::DeviceLink> links;
  for (const exe::LinkUse& use : exe::linksOf(executable)) {
    collective::DeviceLink& link = links.emplace_back(collective::DeviceLink{use.link + offset, use.from, use.to});
    const int32_t worker = use.from == own ? use.from_worker : use.to == own ? use.to_worker : -1;
    if (worker < 0) continue;
    const auto space = static_cast<size_t>(executable.workers[worker].space);
    link.own = devices[space % devices.size()];
  }
  return links;
}

}  // namespace

void connectLinks(const Compiled& compiled, const compile::ProgramOptions& options, const std::function<bool()>& poll) {
  if (!compiled.peers || collective::handover() != collective::Handover::kDevice) return;
  const std::vector<collective::DeviceLink> links = linksOf(compiled.executable, options);
  if (links.empty()) return;
  collective::Peers& peers = *compiled.peers;
  processes::waitForOthers(peers, poll, [&] { peers.connectDevices(links, options.processes.stages); });
}

}  // namespace abele::session
