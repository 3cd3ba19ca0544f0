// Weight updates, bit-equal to torch.optim's single-tensor implementations. Used by device/cpu.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::runtime {

/// Hyper-parameters of one parameter group.
struct Hyper {
#define ABELE_HYPER(name, type, value, range) type name = value;
#include "base/optimizers.def"
  double gradient_scale = 1;  // the gradient sum is multiplied by it first, when it is not 1
  bool rounds_rate = false;   // Adam: lr is a float32 tensor in torch, which rounds what it makes of it
  bool fused = false;         // by torch's fused kernels, whose bits differ from those of its other implementations
  bool libtorch = false;      // as the classes torch::optim of C++ compute, whose last bits differ from those of Python
};

/// By its name. False: there is no such number.
bool setNumber(Hyper& hyper, const std::string& name, double value);

// Tensors of an update may differ in element type: it is computed in the widest of them. Of complex tensors, real and
// imaginary parts are updated like real numbers, as torch does; LAMB takes no complex ones.

/// Stochastic gradient descent. momentum may be undefined when hyper.momentum is 0; it starts at 0, so dampening
/// applies to the first step as well (and to the step itself without momentum). step, where it is defined, is f32[] and
/// counts the updates with momentum; then dampening is torch's: the first of them takes the whole gradient, and
/// updates without momentum neither are dampened nor touch the velocity.
/// Source: spec optim.md section 3; arithmetic order of torch/optim/sgd.py.
void updateSgd(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& momentum, const at::Tensor& step,
               const Hyper& hyper);

/// Adam; with decoupled weight decay AdamW. step is f32[] and counts this update too.
/// Source: spec optim.md section 3; arithmetic order of torch/optim/adam.py.
void updateAdam(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& exp_avg,
                const at::Tensor& exp_avg_sq, const at::Tensor& step, bool decoupled_weight_decay, const Hyper& hyper);

struct AdamTensors {
  at::Tensor param, gradient, exp_avg, exp_avg_sq, step;
};
/// The same for parameters of one group: those of accelerators in one pass over lists, as torch.optim.
void updateAdam(const std::vector<AdamTensors>& all, bool decoupled_weight_decay, const Hyper& hyper);

/// RMSprop. average: undefined unless centered. buffer: undefined unless there is momentum. tf_variant: epsilon is
/// added under the root (square starts at 1 then), and the learning rate counts when the momentum takes a gradient in.
/// Source: spec optim.md section 3; arithmetic order of torch/optim/rmsprop.py.
void updateRmsprop(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& square,
                   const at::Tensor& average, const at::Tensor& buffer, bool tf_variant, const Hyper& hyper);

/// LAMB: AdamW's step, scaled for each parameter by the ratio of its norm to the step's. Source: spec optim.md
/// section 3.
void updateLamb(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& exp_avg,
                const at::Tensor& exp_avg_sq, const at::Tensor& step, bool bias_correction, const Hyper& hyper);

/// What all gradients have to be multiplied by so that their norm together is at most max_norm; scale: of the sums.
/// Source: spec optim.md section 3 (clipping).
double clipFactor(const std::vector<at::Tensor>& gradients, double scale, double max_norm);

/// Is no element infinite or NaN?
bool areFinite(const std::vector<at::Tensor>& gradients);

}  // namespace abele::runtime
