#include "registry/attributes.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include <sys/utsname.h>

#include "base/cat.h"
#include "base/version.h"

namespace abele::registry {
namespace {

/// The user of a device of the group. Several processes may share it; all are listed.
Attributes userOf(const DeviceGroup& group, const std::vector<Attached>& all) {
  std::map<int64_t, const Attached*> owners;
  for (const Attached& each : all)
    for (const AttachedDevice& device : each.devices)
      if (device.id >= group.first && device.id < group.first + group.count) owners.emplace(each.pid, &each);
  if (owners.empty()) return {};
  std::vector<std::string> commands, users, ids;
  for (const auto& [pid, owner] : owners) {
    commands.push_back(owner->command);
    const std::string user = userName(owner->user_id);
    if (std::ranges::find(users, user) == users.end()) users.push_back(user);
    ids.push_back(cat(pid));
  }
  const auto joined = [](const std::vector<std::string>& texts) {
    std::string text;
    for (const std::string& each : texts) text += (text.empty() ? "" : ", ") + each;
    return text;
  };
  return {{"user executable", joined(commands)}, {"user name", joined(users)}, {"user process id", joined(ids)}};
}

/// Adds up the loads of models, because models that share a device take turns on it.
std::string utilisationOf(const DeviceGroup& group, const std::vector<Attached>& all) {
  double sum = 0;
  for (int64_t id = group.first; id < group.first + group.count; ++id) {
    double load = 0;
    for (const Attached& each : all)
      for (const AttachedDevice& device : each.devices)
        if (device.id == id) load += device.load;
    sum += std::min(load, 1.0);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f%%", 100 * sum / static_cast<double>(group.count));
  return text;
}

}  // namespace

int64_t ipuNumber(int64_t device) { return kPerMachine - 1 - device % kPerMachine; }

Attributes attributesOf(size_t number, const DeviceGroup& group, const std::vector<Attached>& all) {
  const bool alone = group.count == 1;
  utsname system{};
  ::uname(&system);
  Attributes attributes = {
      {"id", cat(number)},
      {"target", alone ? "CPU (emulated)" : "Multi IPU"},
      {"average board temp", "N/A"},
      {"average die temp", "N/A"},
      {"board ipu index", alone ? cat(ipuNumber(group.first)) : "N/A"},
      {"board serial number", "N/A"},
      {"board type", "emulated"},
      {"clock", kClock},
      {"driver version", versionText()},
      {"firmware version", "N/A"},
      {"host", system.nodename},
      {"ipu architecture", kArchitecture},
      {"ipu error state", "N/A"},
      {"ipu power", "N/A"},
      {"ipu utilisation", utilisationOf(group, all)},
      {"ipu utilisation (session)", utilisationOf(group, all)},
      {"ipuof host", kDeviceHost},
      {"ipuof partition id", kPartition},
      {"ipuof routing id", "0"},
      {"ipuof routing type", "DNC"},
      {"ipuof server version", versionText()},
      {"link speed", "N/A"},
      {"link width", "N/A"},
      {"number of IPUs", cat(group.count)},
      {"number of replicas", "1"},
      {"numa node", "N/A"},
      {"partition sync type", "N/A"},
      {"pci id", "N/A"},
      {"processor", system.machine},
      {"reconfigurable partition", "1"},
      {"remote buffers", "1"},
      {"remote buffers supported", "1"},
      {"total board power", "N/A"},
  };
  for (auto& each : userOf(group, all)) attributes.push_back(std::move(each));
  return attributes;
}

}  // namespace abele::registry
