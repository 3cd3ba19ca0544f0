// Tensors that stay on a device or in a file until they are read, so that no process needs memory for all of them at
// once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "base/type.h"

namespace abele::session {

struct StoredTensor {
  Type type;  // dtype and sizes
  /// Reads the tensor; may be called any number of times. Returns host memory, or for Session::storedState() the
  /// device's memory.
  std::function<at::Tensor()> read;
  /// Reads into host memory: contiguous, of this type. Null: only read() is available.
  std::function<void(const at::Tensor&)> read_into = {};
  /// Reads and checks the data without keeping it. Throws if it is damaged. Null: the data is in memory.
  std::function<void()> require_whole = {};
  /// The process that can read it, of those that hold the stages of a replica; 0 if all can.
  int64_t process = 0;
};
using StoredTensors = std::map<std::string, StoredTensor>;

/// A stored tensor that is in memory.
inline StoredTensor stored(at::Tensor tensor) {
  Type type;
  if (tensor.defined()) type = contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec());
  return {.type = std::move(type), .read = [tensor = std::move(tensor)] { return tensor; }};
}

}  // namespace abele::session
