// The devices of a session's program in this process, and what they computed. For whoever shows them to others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace abele::host {

class Session;

/// By the program's own numbers, which count from 0.
struct DeviceUse {
  int64_t first = 0, count = 0;      // where processes hold its stages, those of this one
  std::vector<std::string> targets;  // by device: "cpu", "cuda:0"
};
/// Requires: a program is compiled.
DeviceUse deviceUse(Session& session);
/// How long each of these devices computed in the last call.   Units: ns.
void busyTimes(Session& session, const DeviceUse& use, std::vector<int64_t>& busy_ns);

}  // namespace abele::host
