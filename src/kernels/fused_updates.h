// Updates of float32 elements in few passes over memory, with the roundings of ATen's vectorised kernels: mul, add with
// alpha (one rounding), addcmul (the last product and the sum: one rounding), addcdiv, lerp. optimizers.cc uses them if
// the processor can run this file, and if a trial gives the same bits as ATen's operators.
#pragma once

#include <cstdint>

namespace abele::kernels::fused {

/// Every update starts from gradient = sum * scale + weight * decay. scale is negative when the loss is maximised.
struct Gradient {
  float scale, decay;
};

struct Sgd {
  Gradient gradient;
  float momentum, taken, rate;  // velocity = velocity * momentum + gradient * taken; weight += velocity * rate
  bool nesterov;
};

struct Adam {
  Gradient gradient;
  float shrinkage;  // multiplies the weight first
  // The mean of gradients moves by at::lerp with `taken` if `lerps`; otherwise it is mean * kept + gradient * taken.
  float taken, kept;
  bool lerps;
  float beta2, taken2, root, eps, rate;
};

struct Rmsprop {
  Gradient gradient;
  float alpha, taken;
  bool lerps;  // as above; alpha is the kept share
  float eps;
  bool eps_under_root;
  float momentum, velocity_rate, rate;  // velocity_rate: the factor of the step that the velocity adds
};

/// count: elements of each tensor; velocity: null without momentum.
void update(int64_t count, float* weight, const float* sum, float* velocity, const Sgd& with);

// ATen computes the square roots, because its library rounds them differently from the processor. So the states are
// updated first, and then the weights from the roots of `square` or `spread`.
void updateStates(int64_t count, float* weight, const float* sum, float* average, float* square, const Adam& with);
void updateWeights(int64_t count, float* weight, const float* average, const float* root, const Adam& with);
/// average: null unless centered. velocity: null without momentum.
void updateStates(int64_t count, const float* weight, const float* sum, float* square, float* average, float* spread,
                  const Rmsprop& with);
void updateWeights(int64_t count, float* weight, const float* sum, const float* root, float* velocity,
                   const Rmsprop& with);

}  // namespace abele::kernels::fused
