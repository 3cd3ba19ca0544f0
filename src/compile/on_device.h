// A model's tensors on the device that it is captured on. Used by compiler.cc.
#pragma once

#include <vector>

#include "capture/capture.h"
#include "compile/meta_tensors.h"

namespace abele::host {

/// While it lives, the model's tensor objects work in copies on the device; tensors that share memory share it there,
/// too. Afterwards they have their own memory again, unchanged. Tensors that are on the device already stay as they
/// are. Tensors on the meta device read as zeros meanwhile and take no memory of the host, since a program depends on
/// shapes alone. Threads: nobody else may use the model meanwhile.
class OnDevice {
 public:
  OnDevice(const std::vector<capture::ModelTensor>& model, c10::Device device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  /// Were there tensors on the meta device?
  bool hasShapesAlone() const { return has_shapes_alone_; }

 private:
  Memories moved_;
  bool has_shapes_alone_ = false;
};

}  // namespace abele::host
