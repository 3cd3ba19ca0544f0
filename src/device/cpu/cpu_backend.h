// CPU devices. A device is a worker thread with its own number of intra-op threads. Tensors are in arenas that the plan
// laid out.
#pragma once

#include <memory>

#include <ATen/core/TensorBase.h>

#include "device/backend.h"

namespace abele::device {

/// A DeviceBackend with further functions that need the host's memory; for tests of this folder.
class CpuBackend : public DeviceBackend {
 public:
  static std::unique_ptr<CpuBackend> create(const exe::Executable& executable, const DeviceOptions& options);

  /// A tensor that shares the external's memory and keeps it alive.
  virtual at::Tensor external(int32_t index, int32_t replica = 0) const = 0;
  /// Removes all file-backed memory from the process's resident set.
  virtual void releaseAll() = 0;
};

}  // namespace abele::device
