// Weight updates, bit-equal to torch.optim's single-tensor implementations. Used by device/cpu.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::kernels {

/// The hyper-parameters of one parameter group.
struct Hyper {
#define ABELE_HYPER(name, type, value, range) type name = value;
#include "base/optimizers.def"
  double gradient_scale = 1;  // the gradient sum is multiplied by it first, unless it is 1
  bool rounds_rate = false;   // Adam: lr is a float32 tensor in torch, so torch rounds what it computes from it
  bool fused = false;         // use torch's fused kernels, whose bits differ from those of its other implementations
  bool libtorch = false;      // compute as the C++ classes torch::optim, whose last bits differ from those of Python
};

/// Sets a number by its name. Returns false for an unknown name.
bool setNumber(Hyper& hyper, const std::string& name, double value);

// Tensors of an update may differ in element type; the widest type is used for computing. Real and imaginary parts of
// complex tensors are updated like real numbers, as in torch; LAMB takes no complex tensors.

/// Stochastic gradient descent. momentum may be undefined if hyper.momentum is 0. It starts at 0, so dampening applies
/// to the first step as well (and to the step itself without momentum). step may be undefined; otherwise it is f32[]
/// and counts the updates with momentum. With step, dampening is torch's: the first update with momentum takes the
/// whole gradient, and updates without momentum are not dampened and do not change the velocity.
/// Source: spec optim.md section 3; arithmetic order of torch/optim/sgd.py.
void updateSgd(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& momentum, const at::Tensor& step,
               const Hyper& hyper);

/// Adam; AdamW if decoupled_weight_decay. step is f32[] and counts this update too.
/// Source: spec optim.md section 3; arithmetic order of torch/optim/adam.py.
void updateAdam(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& exp_avg,
                const at::Tensor& exp_avg_sq, const at::Tensor& step, bool decoupled_weight_decay, const Hyper& hyper);

struct AdamTensors {
  at::Tensor param, gradient, exp_avg, exp_avg_sq, step;
};
/// The same for parameters of one group; on accelerators in one pass over lists, as in torch.optim.
void updateAdam(const std::vector<AdamTensors>& all, bool decoupled_weight_decay, const Hyper& hyper);

/// RMSprop. average: undefined unless centered. buffer: undefined without momentum. tf_variant: epsilon is added under
/// the root (square then starts at 1), and the learning rate applies when the momentum takes a gradient in.
/// Source: spec optim.md section 3; arithmetic order of torch/optim/rmsprop.py.
void updateRmsprop(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& square,
                   const at::Tensor& average, const at::Tensor& buffer, bool tf_variant, const Hyper& hyper);

/// LAMB: AdamW's step, scaled for each parameter by the ratio of its norm to the step's. Source: spec optim.md
/// section 3.
void updateLamb(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& exp_avg,
                const at::Tensor& exp_avg_sq, const at::Tensor& step, bool bias_correction, const Hyper& hyper);

/// The factor for all gradients that limits their common norm to max_norm; scale: of the sums.
/// Source: spec optim.md section 3 (clipping).
double clipFactor(const std::vector<at::Tensor>& gradients, double scale, double max_norm);

/// Whether all elements are finite.
bool areFinite(const std::vector<at::Tensor>& gradients);

}  // namespace abele::kernels
