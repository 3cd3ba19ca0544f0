// Tensors on the meta device have a type and a shape but no memory, so a model can be made before its weights have a
// place. This file gives them memory, and moves a model's tensors to the device of the capture.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/capture.h"

namespace abele::compile {

/// Gives a tensor other memory, also of another device. Views of the tensor keep the old memory.
void setMemory(const at::Tensor& tensor, const c10::Storage& storage);

/// Gives host memory with undefined contents to those tensors that are on the meta device. Tensors that shared a
/// storage share it again. Memory takes no pages before the first access. Returns: the tensors and their earlier
/// memory, for takeMemory().
struct Memories {
  std::vector<std::pair<at::Tensor, c10::Storage>> before;
};
Memories giveMemory(const std::vector<at::Tensor>& tensors);
/// Undoes giveMemory(): gives the tensors their earlier memory.
void takeMemory(const Memories& memories);

/// Memory that reads as zeros and takes no pages until a write.
c10::Storage zeros(int64_t bytes);

/// While it lives, the model's tensor objects use copies on the device. Tensors that share memory share it there, too.
/// Afterwards they have their own memory again, unchanged. Tensors that are on the device already do not change.
/// Tensors on the meta device read as zeros and take no host memory, because a program depends only on shapes. Threads:
/// no other thread may use the model meanwhile.
class OnDevice {
 public:
  OnDevice(const std::vector<capture::ModelTensor>& model, c10::Device device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  /// Returns true if some tensors were on the meta device.
  bool hasShapesAlone() const { return has_shapes_alone_; }

 private:
  Memories moved_;
  bool has_shapes_alone_ = false;
};

}  // namespace abele::compile
