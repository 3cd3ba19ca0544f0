#include "compile/device_list.h"

#include <algorithm>
#include <optional>

#include <ATen/DeviceAccelerator.h>

#include "base/error.h"

namespace abele::compile {
namespace {

// The list of device names repeats for at most this number of devices. Devices beyond it get memory of their
// own on the same accelerators: the numbers are the same, with copies that could be avoided.
constexpr size_t kMostDevices = 1024;

const c10::Device kCpu(c10::DeviceType::CPU);

// Adds the devices that one name of a list stands for.
void addDevices(const std::string& name, std::vector<c10::Device>& devices) {
  if (name == "cpu") return devices.push_back(kCpu);
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  const std::string kind = count > 0 ? c10::DeviceTypeName(*type, /*lower_case=*/true) : "";
  const auto refuse = [&] {
    throwUser(ErrorCode::E0702, {.what = cat("there is no device ", name),
                                 .found = count > 0 ? cat("cpu, and ", count, " of ", kind) : "cpu",
                                 .expected = "cpu, or an accelerator that torch has here",
                                 .remedy = "use cpu devices, or install a torch for this accelerator"});
  };
  if (count == 0 || name.substr(0, name.find(':')) != kind) refuse();
  if (name == kind) {
    for (int i = 0; i < count; ++i) devices.emplace_back(*type, static_cast<c10::DeviceIndex>(i));
    return;
  }
  const std::string number = name.substr(kind.size() + 1);
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos || number.size() > 3 ||
      std::stoi(number) >= count)
    refuse();
  devices.emplace_back(*type, static_cast<c10::DeviceIndex>(std::stoi(number)));
}

/// Number of devices of one replica in a process; 0: the number that the model has.
int64_t devicesOfReplica(const ProgramOptions& options) { return options.processes.devices / options.replicas; }

size_t beginOf(const ProgramOptions& options, int64_t process, size_t devices) {
  const ProcessOptions& processes = options.processes;
  const auto count = static_cast<int64_t>(devices);
  if (const int64_t here = devicesOfReplica(options); here > 0) return static_cast<size_t>(process * here % count);
  const int64_t place = process % processes.on_host;
  return static_cast<size_t>(count < processes.on_host ? place % count : place * (count / processes.on_host));
}

std::vector<c10::Device> withoutRepeats(const std::vector<c10::Device>& devices) {
  std::vector<c10::Device> found;
  for (const c10::Device& device : devices)
    if (std::ranges::find(found, device) == found.end()) found.push_back(device);
  return found;
}

c10::Device firstAccelerator(const std::vector<c10::Device>& devices) {
  const auto first = std::ranges::find_if(devices, [](c10::Device device) { return !device.is_cpu(); });
  return first == devices.end() ? kCpu : *first;
}

/// Which of the first `count` devices of a process share memory, and which of them are CPUs.
std::vector<int> layoutOf(const std::vector<c10::Device>& devices, size_t count, std::vector<bool>& is_cpu) {
  std::vector<int> layout;
  std::vector<c10::Device> found;
  for (size_t k = 0; k < count; ++k) {
    const c10::Device device = devices[k % devices.size()];
    const auto at = std::ranges::find(found, device);
    layout.push_back(static_cast<int>(at - found.begin()));
    is_cpu.push_back(device.is_cpu());
    if (at == found.end()) found.push_back(device);
  }
  return layout;
}

}  // namespace

std::vector<c10::Device> deviceList(const std::string& names) {
  if (names.empty()) return {kCpu};
  std::vector<c10::Device> devices;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const size_t first = std::min(names.find_first_not_of(' ', begin), end);
    addDevices(names.substr(first, names.find_last_not_of(' ', end - 1) + 1 - first), devices);
    begin = end + 1;
  }
  return devices;
}

std::vector<c10::Device> devicesOf(const ProgramOptions& options, int64_t process) {
  std::vector<c10::Device> devices = deviceList(options.device);
  const size_t begin = beginOf(options, process, devices.size());
  std::rotate(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(begin), devices.end());
  return devices;
}

std::vector<c10::Device> devicesHere(const ProgramOptions& options) {
  return devicesOf(options, options.processes.index);
}

std::vector<c10::Device> devicesBySpace(const ProgramOptions& options) {
  const std::vector<c10::Device> devices = devicesHere(options);
  const int64_t here = devicesOfReplicaHere(options), own = options.processes.index % options.processes.stages;
  if (here == 0) return withoutRepeats(devices);
  std::vector<c10::Device> by_space;
  const auto put = [&](int space, c10::Device device) {
    if (static_cast<size_t>(space) >= by_space.size())
      by_space.resize(static_cast<size_t>(space) + 1, firstAccelerator(devices));
    by_space[space] = device;
  };
  for (int64_t d = 0; d < here * options.processes.stages; ++d) {
    const bool is_here = d / here == own;
    const c10::Device device =
        is_here ? devices[static_cast<size_t>(d % here) % devices.size()] : firstAccelerator(devices);
    put(options.stages.spaceOf(static_cast<int>(d)), device);
  }
  return by_space;
}

std::vector<int> spacesOf(const ProgramOptions& options) {
  const std::vector<c10::Device> devices = deviceList(options.device);
  std::vector<int> spaces;
  if (withoutRepeats(devices).size() == 1) return spaces;
  const int64_t stages = options.processes.stages, here = devicesOfReplicaHere(options);
  const size_t count = here > 0 ? static_cast<size_t>(here) : devices.size();
  std::vector<std::vector<int>> layouts;  // one per process that holds different stages
  std::vector<std::vector<bool>> kinds;
  for (int64_t process = 0; process < options.processes.count; ++process) {
    std::vector<bool> is_cpu;
    const std::vector<int> layout = layoutOf(devicesOf(options, process), count, is_cpu);
    const auto like = static_cast<size_t>(process % stages);
    if (process < stages) {
      layouts.push_back(layout);
      kinds.push_back(is_cpu);
    }
    ABELE_REQUIRE(layout == layouts[like] && is_cpu == kinds[like], E0702,
                  {.what = cat("processes ", like, " and ", process, " have the same stages, on other devices"),
                   .found = cat("devices ", options.device, " for ", options.processes.count, " processes"),
                   .expected = "devices of the same kinds and in the same layout",
                   .remedy = "list each device once, or as many for each process as it has"});
  }
  if (here == 0) {
    while (spaces.size() < kMostDevices) spaces.insert(spaces.end(), layouts[0].begin(), layouts[0].end());
    return spaces;
  }
  for (const std::vector<int>& layout : layouts) {
    const int before = spaces.empty() ? 0 : 1 + *std::ranges::max_element(spaces);
    for (const int space : layout) spaces.push_back(before + space);
  }
  return spaces;
}

c10::Device captureDevice(const ProgramOptions& options) { return firstAccelerator(devicesHere(options)); }

}  // namespace abele::compile
