#include "session/device_links.h"

#include <map>
#include <utility>
#include <vector>

#include "base/instructions.h"
#include "compile/device_list.h"
#include "runtime/collective/peers.h"
#include "runtime/collective/shared_links.h"
#include "session/impl.h"
#include "session/processes.h"

namespace abele::host {
namespace {

/// Of a replica, as all its processes find them: in the order of their numbers.
std::vector<runtime::DeviceLink> linksOf(const exe::Executable& executable, const ProgramOptions& options) {
  const std::vector<c10::Device> devices =
      captureDevice(options).is_cpu() ? std::vector{captureDevice(options)} : devicesBySpace(options);
  const int64_t own = options.processes.index % options.processes.stages;
  std::map<int64_t, runtime::DeviceLink> by_number;
  for (const exe::WorkerProgram& worker : executable.workers)
    for (const exe::Action& action : worker.actions)
      for (const exe::Instruction& i : executable.segments[action.segment].instructions) {
        if (!hasTrait(i.op, kMessage)) continue;
        runtime::DeviceLink& link = by_number[i.args.at(2).i];
        link.link = i.args.at(2).i;
        (ownOp(i.op) == OwnOp::kSend ? link.from : link.to) = worker.process;
        if (worker.process == own) link.own = devices[static_cast<size_t>(worker.space) % devices.size()];
      }
  std::vector<runtime::DeviceLink> links;
  for (const auto& [number, link] : by_number) links.push_back(link);
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

void joinProcessesByDevices(runtime::MakeDeviceGroup make) { runtime::setDeviceGroups(std::move(make)); }

}  // namespace abele::host
