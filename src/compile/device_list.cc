#include "compile/device_list.h"

#include <algorithm>
#include <optional>

#include <ATen/DeviceAccelerator.h>

#include "base/error.h"
#include "compile/program_options.h"

namespace abele::host {
namespace {

// Devices of a model, for the rule by which they begin the list again. With more of them, the last ones get memory of
// their own on the same accelerators: the same numbers, and copies that could be spared.
constexpr size_t kMostDevices = 1024;

const c10::Device kCpu(c10::DeviceType::CPU);

// Adds what one name of a list means.
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

std::vector<c10::Device> devicesBySpace(const std::vector<c10::Device>& devices) {
  std::vector<c10::Device> found;
  for (const c10::Device& device : devices)
    if (std::find(found.begin(), found.end(), device) == found.end()) found.push_back(device);
  return found;
}

std::vector<int> spacesOf(const std::vector<c10::Device>& devices) {
  const std::vector<c10::Device> by_space = devicesBySpace(devices);
  std::vector<int> spaces;
  if (by_space.size() == 1) return spaces;
  while (spaces.size() < kMostDevices)
    for (const c10::Device& device : devices)
      spaces.push_back(static_cast<int>(std::find(by_space.begin(), by_space.end(), device) - by_space.begin()));
  return spaces;
}

c10::Device captureDevice(const ProgramOptions& options) {
  const std::vector<c10::Device> devices = deviceList(options.device);
  const auto first = std::find_if(devices.begin(), devices.end(), [](c10::Device device) { return !device.is_cpu(); });
  return first == devices.end() ? kCpu : *first;
}

}  // namespace abele::host
