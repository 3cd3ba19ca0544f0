// gc-info: the devices that programs see, in the form of Graphcore's tool. Source: spec tools.md.
#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "gc_devices.h"
#include "tool.h"

namespace {

using namespace abele;
using registry::DeviceGroup;

std::string line(const std::string& begin, const std::string& target, int64_t device) {
  return cat(begin, ", ", target, "IPU-M host: [", registry::kDeviceHost, "], IPU#: [", registry::ipuNumber(device),
             "]\n");
}

std::string listing(const std::vector<DeviceGroup>& groups) {
  std::string text = cat("Graphcore device listing:\n\nPartition: ", registry::kPartition, " [active]\n");
  for (size_t number = 0; number < groups.size(); ++number) {
    const DeviceGroup& group = groups[number];
    if (group.count == 1) {
      text += line(cat("-+- Id: [", number, "]"), "target: [CPU (emulated)], ", group.first);
      continue;
    }
    text += cat("-+- Id: [", number, "], target: [Multi IPU]\n");
    for (int64_t place = 0; place < group.count; ++place)
      text += line(cat(" |--- Id: [", place, "], DNC Id: [", group.first + place, "]"), "", group.first + place);
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  bool list = false, info = false, count = false, architecture = false, clock = false, all_partitions = false;
  std::optional<int64_t> id;
  CLI::App app("Devices that programs are told of: emulated, each some cores of this machine", "gc-info");
  CLI::Option_group* what = app.add_option_group("what");
  what->add_flag("-l,--list-devices", list, "all devices, also those of several IPUs");
  what->add_flag("-i,--device-info", info, "the attributes of one device, with -d");
  what->add_flag("--ipu-count", count, "IPUs of a device, with -d; all without");
  what->add_flag("--ipu-arch", architecture, "architecture whose programs run");
  what->add_flag("--tile-clock-speed", clock, "MHz of cycle counts");
  what->require_option(0, 1);
  app.add_option("-d,--device-id", id, "the device");
  app.add_flag("--all-partitions", all_partitions, "no effect: there is one");
  return tools::runTool(app, argc, argv, [&] {
    if (!list && !info && !count && !architecture && !clock)
      tools::refuse("gc-info", "nothing is asked for",
                    "--list-devices, --device-info, --ipu-count, --ipu-arch or --tile-clock-speed");
    const std::vector<DeviceGroup> groups = registry::deviceGroups();
    if (id) tools::requireDevice("gc-info", *id, groups.size());
    if (info && !id) tools::refuse("gc-info", "--device-info without a device", "-d ID");
    const auto number = static_cast<size_t>(id.value_or(0));
    if (list) std::cout << listing(groups);
    if (info) {
      std::cout << "Device Info:\n";
      for (const auto& [name, value] : registry::attributesOf(number, groups[number], registry::attached()))
        std::cout << "  " << name << ": " << value << "\n";
    }
    if (count) std::cout << (id ? groups[number].count : registry::numDevices()) << "\n";
    if (architecture) std::cout << registry::kArchitecture << "\n";
    if (clock) std::cout << registry::kClock << "\n";
  });
}
