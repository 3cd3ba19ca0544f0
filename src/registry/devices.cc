#include "registry/devices.h"

#include "base/cat.h"
#include "base/environment.h"
#include "base/error.h"

namespace abele::registry {

int64_t numDevices() {
  constexpr int64_t kDefault = 64;  // what a program of PopTorch may reserve
  constexpr int64_t kMost = int64_t{1} << 20;
  const int64_t number = environmentInteger("ABELE_EMULATED_DEVICES", kDefault);
  ABELE_REQUIRE(number >= 0 && number <= kMost, E0702,
                {.what = cat("environment variable ABELE_EMULATED_DEVICES is ", number),
                 .expected = cat("an integer from 0 to ", kMost),
                 .remedy = "set ABELE_EMULATED_DEVICES to such a number, or unset it"});
  return number;
}

std::vector<DeviceGroup> deviceGroups() {
  const int64_t number = numDevices();
  std::vector<DeviceGroup> groups;
  for (int64_t count = 1; count <= number; count *= 2)
    for (int64_t first = 0; first + count <= number; first += count) groups.push_back({first, count});
  return groups;
}

}  // namespace abele::registry
