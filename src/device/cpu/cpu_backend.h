// CPU devices. A device is a worker thread with its own number of intra-op threads; memory is planned arenas.
#pragma once

#include <memory>

#include <ATen/core/TensorBase.h>

#include "device/backend.h"

namespace abele::device {

/// The contract, with functions that only the host's memory can offer; for tests of this folder.
class CpuBackend : public DeviceBackend {
 public:
  static std::unique_ptr<CpuBackend> create(const exe::Executable& executable, const DeviceOptions& options);

  /// A tensor that shares the external's memory and keeps it alive.
  virtual at::Tensor external(int32_t index, int32_t replica = 0) const = 0;
  /// Takes all memory that is backed by a file out of the process's resident set.
  virtual void releaseAll() = 0;
};

}  // namespace abele::device
