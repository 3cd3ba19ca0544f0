#include "registry/devices.h"

#include "base/environment.h"

namespace abele::registry {

int64_t numDevices() {
  constexpr int64_t kDefault = 64;  // as many as a PopTorch program may reserve
  constexpr int64_t kMost = int64_t{1} << 20;
  return environmentInteger("ABELE_EMULATED_DEVICES", kDefault, 0, kMost);
}

std::vector<DeviceGroup> deviceGroups() {
  const int64_t number = numDevices();
  std::vector<DeviceGroup> groups;
  for (int64_t count = 1; count <= number; count *= 2)
    for (int64_t first = 0; first + count <= number; first += count) groups.push_back({first, count});
  return groups;
}

}  // namespace abele::registry
