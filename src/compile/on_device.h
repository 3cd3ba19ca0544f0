// A model's tensors on the device that it is captured on. Used by compiler.cc.
#pragma once

#include <vector>

#include "capture/capture.h"
#include "compile/meta_tensors.h"

namespace abele::compile {

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
