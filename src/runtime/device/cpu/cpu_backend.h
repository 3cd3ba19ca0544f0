// CPU devices: a device is a worker thread with its own number of intra-op threads; memory is planned arenas.
#pragma once

#include <memory>

#include <ATen/core/TensorBase.h>

#include "runtime/device/backend.h"

namespace abele::runtime {

/// The contract, and what only memory of the host can offer; for tests of this folder.
class CpuBackend : public DeviceBackend {
 public:
  static std::unique_ptr<CpuBackend> create(const exe::Executable& executable, const DeviceOptions& options);

  /// Tensor that shares the external's memory, which it keeps alive.
  virtual at::Tensor external(int32_t index, int32_t replica = 0) const = 0;
  /// Takes all that is in a file out of the process's resident set.
  virtual void releaseAll() = 0;
};

}  // namespace abele::runtime
