// Tensors that stay where they are, on a device or in a file, until somebody reads them: so that no process needs
// memory for all of them at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "base/type.h"

namespace abele::host {

struct StoredTensor {
  Type type;  // dtype and sizes
  /// Any number of times; the host's memory, or of Session::storedState() a device's own.
  std::function<at::Tensor()> read;
  /// The same into memory of the host: contiguous, of this type. Null: read() is the only way.
  std::function<void(const at::Tensor&)> read_into = {};
  /// Reads it and keeps nothing of it. Throws where it is damaged. Null: it is in memory.
  std::function<void()> require_whole = {};
  /// Of the processes that hold the stages of a replica, the one that can read it; 0 also where all can.
  int64_t process = 0;
};
using StoredTensors = std::map<std::string, StoredTensor>;

/// One that is in memory.
inline StoredTensor stored(at::Tensor tensor) {
  Type type;
  if (tensor.defined()) type = contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec());
  return {.type = std::move(type), .read = [tensor = std::move(tensor)] { return tensor; }};
}

}  // namespace abele::host
