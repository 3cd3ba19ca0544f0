// Updates of float32 elements in few passes over memory, with the roundings of ATen's vectorised kernels: mul, add with
// alpha (one rounding), addcmul (the last product and the sum: one rounding), addcdiv, lerp. Used by optimizers.cc,
// where the processor has what this file is compiled for and where a trial shows the same bits as ATen's operators.
#pragma once

#include <cstdint>

namespace abele::runtime::fused {

/// What every update starts from: gradient = sum * scale + weight * decay. scale is negative when the loss is
/// maximised.
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
  float shrinkage;  // the weight is multiplied by it first
  // The mean of gradients moves by at::lerp with `taken`; else it is mean * kept + gradient * taken.
  float taken, kept;
  bool lerps;
  float beta2, taken2, root, eps, rate;
};

struct Rmsprop {
  Gradient gradient;
  float alpha, taken;
  bool lerps;  // as above; alpha is what is kept
  float eps;
  bool eps_under_root;
  float momentum, velocity_rate, rate;  // velocity_rate: how much of a step the velocity takes in
};

/// count elements of each; velocity: null without momentum.
void update(int64_t count, float* weight, const float* sum, float* velocity, const Sgd& with);

// Square roots stay with ATen, whose library does not round them as the processor does: the states first, then, from
// the roots of `square` or `spread`, the weights.
void updateStates(int64_t count, float* weight, const float* sum, float* average, float* square, const Adam& with);
void updateWeights(int64_t count, float* weight, const float* average, const float* root, const Adam& with);
/// average: null unless centered. velocity: null without momentum.
void updateStates(int64_t count, const float* weight, const float* sum, float* square, float* average, float* spread,
                  const Rmsprop& with);
void updateWeights(int64_t count, float* weight, const float* sum, const float* root, float* velocity,
                   const Rmsprop& with);

}  // namespace abele::runtime::fused
