// The devices of a session's program in this process and the time that they computed, for monitoring tools.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace abele::session {

class Session;

/// Numbers are the program's own device numbers, which start at 0.
struct DeviceUse {
  int64_t first = 0, count = 0;      // all devices, or those of this process if processes hold the stages
  std::vector<std::string> targets;  // by device: "cpu", "cuda:0"
};
/// Requires: a program is compiled.
DeviceUse deviceUse(Session& session);
/// Sets the time that each of these devices computed in the last call. Units: ns.
void busyTimes(Session& session, const DeviceUse& use, std::vector<int64_t>& busy_ns);

}  // namespace abele::session
