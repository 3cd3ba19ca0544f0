#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "base/nearest.h"
#include "device/backend.h"

namespace abele::device {

at::Tensor DeviceBackend::memory(int32_t /*external*/) const { return {}; }

void DeviceBackend::setOwnStreams(std::vector<OwnStream> streams) {
  ABELE_REQUIRE(streams.empty(), E0106,
                {.what = "random numbers from a generator of the program",
                 .found = "a device that cannot draw from it",
                 .expected = "devices of the CPU",
                 .remedy = "leave the generator out, or draw the numbers before the call and pass them as an input"});
}

// This file includes no folder of a device; it finds a device by its row.
#define ABELE_BACKEND(name, make, ...) \
  std::unique_ptr<DeviceBackend> make(const exe::Executable& executable, const DeviceOptions& options);
#include "device/backends.def"

const std::vector<BackendRow>& allBackends() {
#define ABELE_BACKEND(name, make, computes) {name, &make, computes},
  static const std::vector<BackendRow> rows = {
#include "device/backends.def"
  };
  return rows;
}

std::unique_ptr<DeviceBackend> makeBackend(const std::string& name, const exe::Executable& executable,
                                           const DeviceOptions& options) {
  std::vector<std::string> known;
  for (const BackendRow& row : allBackends()) {
    if (name == row.name) return row.make(executable, options);
    known.emplace_back(row.name);
  }
  throwUser(ErrorCode::E0702, {.what = cat("there is no device ", name), .expected = oneOf(known)});
}

}  // namespace abele::device
