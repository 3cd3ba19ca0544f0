// The hyper-parameters of one parameter group.
#pragma once

namespace abele::kernels {

struct Hyper {
#define ABELE_HYPER(name, type, value, range) type name = value;
#include "base/optimizers.def"
  double gradient_scale = 1;  // the gradient sum is multiplied by it first, unless it is 1
  bool rounds_rate = false;   // Adam: lr is a float32 tensor in torch, so torch rounds results computed from it
  bool fused = false;         // use torch's fused kernels, whose bits differ from those of its other implementations
  bool libtorch = false;      // compute as the C++ classes torch::optim, whose last bits differ from those of Python
};

}  // namespace abele::kernels
