// What gc-info and gc-inventory share: the attributes of the devices that programs are told of, in the form of
// Graphcore's tools. They are emulated, each some cores of this machine. Sensors are N/A; load and owners are those of
// the programs that run. Source: spec tools.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sys/utsname.h>

#include "base/cat.h"
#include "base/version.h"
#include "registry/attachment.h"
#include "registry/devices.h"
#include "tool.h"

namespace abele::tools {

constexpr const char* kPartition = "p1";
constexpr const char* kDeviceHost = "127.0.0.1";
constexpr const char* kClock = "1330MHz";  // of cycle counts
constexpr const char* kArchitecture = "ipu2";
constexpr int64_t kPerMachine = 4;  // IPU# counts down within a machine, while ids count up

inline int64_t ipuNumber(int64_t device) { return kPerMachine - 1 - device % kPerMachine; }

/// Throws E0901 where there is no device, or group of devices, with this id.
inline void requireDevice(const std::string& tool, int64_t id, size_t number) {
  if (id < 0 || id >= static_cast<int64_t>(number))
    refuse(tool, cat("there is no device ", id), number ? cat("ids are 0 to ", number - 1) : "there are no devices");
}

/// In the order in which they are printed.
using Attributes = std::vector<std::pair<std::string, std::string>>;

/// Who has a device of the group. Several processes may: they are listed.
inline Attributes userOf(const registry::DeviceGroup& group, const std::vector<registry::Attached>& all) {
  std::map<int64_t, const registry::Attached*> owners;
  for (const registry::Attached& each : all)
    for (const registry::AttachedDevice& device : each.devices)
      if (device.id >= group.first && device.id < group.first + group.count) owners.emplace(each.pid, &each);
  if (owners.empty()) return {};
  std::vector<std::string> commands, users, ids;
  for (const auto& [pid, owner] : owners) {
    commands.push_back(owner->command);
    const std::string user = registry::userName(owner->user_id);
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

/// Models that share a device take turns on it.
inline std::string utilisationOf(const registry::DeviceGroup& group, const std::vector<registry::Attached>& all) {
  double sum = 0;
  for (int64_t id = group.first; id < group.first + group.count; ++id) {
    double load = 0;
    for (const registry::Attached& each : all)
      for (const registry::AttachedDevice& device : each.devices)
        if (device.id == id) load += device.load;
    sum += std::min(load, 1.0);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f%%", 100 * sum / static_cast<double>(group.count));
  return text;
}

/// number: id of the group.
inline Attributes attributesOf(size_t number, const registry::DeviceGroup& group,
                               const std::vector<registry::Attached>& all) {
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

}  // namespace abele::tools
