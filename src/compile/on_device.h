// A model's tensors on an accelerator, while it is captured there. Used by compiler.cc.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/capture.h"

namespace abele::host {

/// While alive, the tensors of a model are on the device: copies of their memory, under the same tensor objects, with
/// all that shares memory among them. Then they have their own memory again, which nothing has touched. Nothing
/// happens to tensors that are there already. Threads: nobody else may use the model meanwhile.
class OnDevice {
 public:
  OnDevice(const std::vector<capture::ModelTensor>& model, c10::Device device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  struct Moved {
    at::Tensor tensor;
    c10::Storage own;
  };
  std::vector<Moved> moved_;
};

}  // namespace abele::host
