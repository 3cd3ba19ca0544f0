// Weight updates, bit-equal to torch.optim's single-tensor implementations. Used by device/cpu.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "base/optimizers.h"
#include "kernels/hyper.h"

namespace abele::kernels {

/// Sets a number of a parameter group by its name. Returns false for a group without updates. Throws E0706 for an
/// unknown name.
bool setNumber(std::vector<Hyper>& hypers, int group, const std::string& name, double value);

struct UpdateTensors {
  /// The parameter, the sum of its gradients, and its moments in the order of optimizers.def; a moment that the group
  /// does not have is undefined.
  c10::SmallVector<at::Tensor, 5> tensors;
  at::Tensor step;  // f32[], the number of updates, or undefined
};

/// Updates parameters of one group. Takes several only with Adam or AdamW; on accelerators in one pass over lists, as
/// in torch.optim. flag: the instruction's flag.
///
/// Tensors of an update may differ in element type; the widest type is used for computing. Real and imaginary parts of
/// complex tensors are updated like real numbers, as in torch; LAMB takes no complex tensors.
///
/// SGD without a step: the velocity starts at 0, so dampening also applies to the first update. If momentum is 0, it
/// applies to the gradient. With a step, which counts the updates with momentum, dampening is torch's: the first update
/// with momentum takes the whole gradient, and updates without momentum are not dampened and do not change the
/// velocity.
/// Source: spec optim.md section 3; arithmetic order of torch.optim (SGD, Adam, RMSprop).
void update(OptimizerKind kind, bool flag, const std::vector<UpdateTensors>& all, const Hyper& hyper);

/// The factor for all gradients that limits their common norm to max_norm. scale: the factor of the gradient sums.
/// Source: spec optim.md section 3 (clipping).
double clipFactor(const std::vector<at::Tensor>& gradients, double scale, double max_norm);

/// Whether all elements are finite.
bool areFinite(const std::vector<at::Tensor>& gradients);

}  // namespace abele::kernels
