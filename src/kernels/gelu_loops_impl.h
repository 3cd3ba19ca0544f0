// The loops of gelu_loops.h, compiled once for each kind of processor in a namespace of its own. Includes no header
// with inline functions that other units use.
#ifndef ABELE_LOOPS
#error "ABELE_LOOPS names the kind of processor"
#endif

#include <bit>

#include "kernels/gelu_loops.h"

namespace abele::kernels::loops::ABELE_LOOPS {
namespace {

inline float multiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// exp(-y) for y >= 0, or 0 where that would be subnormal: 2^n * exp(r) with |r| <= ln(2) / 2, and exp(r) by a
// polynomial.
inline float expOfMinus(float y) {
  const float n = __builtin_rintf(y * -1.44269504F);
  float r = multiplyAdd(n, -0.693145752F, -y);  // ln(2) in two parts
  r = multiplyAdd(n, -1.42860677e-6F, r);
  float p = 1.98756912e-4F;
  p = multiplyAdd(p, r, 1.39819994e-3F);
  p = multiplyAdd(p, r, 8.33345205e-3F);
  p = multiplyAdd(p, r, 4.16657962e-2F);
  p = multiplyAdd(p, r, 1.66666651e-1F);
  p = multiplyAdd(p, r, 5.00000000e-1F);
  p = multiplyAdd(p * r, r, r + 1.0F);
  const float power = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return y < 87.0F ? p * power : 0.0F;
}

// The standard normal distribution at x: the share below x, and the density.
struct Normal {
  float below, density;
};

// The share beyond |x| is t P(t) exp(-x^2 / 2) with t = 1 / (1 + c |x|): Abramowitz and Stegun, 7.1.26, halved.
inline Normal normalAt(float x) {
  const float e = expOfMinus(0.5F * x * x);
  const float t = 1.0F / multiplyAdd(0.231641888F, __builtin_fabsf(x), 1.0F);
  float p = 0.5307027145F;
  p = multiplyAdd(p, t, -0.7265760135F);
  p = multiplyAdd(p, t, 0.7107068705F);
  p = multiplyAdd(p, t, -0.142248368F);
  p = multiplyAdd(p, t, 0.127414796F);
  const float beyond = p * t * e;
  return {x < 0 ? beyond : 1.0F - beyond, e * 0.398942280F};
}

inline float gelu(float x) { return x * normalAt(x).below; }
inline float gradient(float grad, float x) {
  const Normal normal = normalAt(x);
  return grad * multiplyAdd(x, normal.density, normal.below);
}

inline float wide(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
// Rounds to the nearest bfloat16; a tie goes to the even one.
inline uint16_t narrow(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : 0x7FC0U);
}

void forward(int64_t count, float* __restrict to, const float* __restrict x) {
  for (int64_t i = 0; i < count; ++i) to[i] = gelu(x[i]);
}
void forwardBf16(int64_t count, uint16_t* __restrict to, const uint16_t* __restrict x) {
  for (int64_t i = 0; i < count; ++i) to[i] = narrow(gelu(wide(x[i])));
}
void backward(int64_t count, float* __restrict to, const float* __restrict grad, const float* __restrict x) {
  for (int64_t i = 0; i < count; ++i) to[i] = gradient(grad[i], x[i]);
}
void backwardBf16(int64_t count, uint16_t* __restrict to, const uint16_t* __restrict grad,
                  const uint16_t* __restrict x) {
  for (int64_t i = 0; i < count; ++i) to[i] = narrow(gradient(wide(grad[i]), wide(x[i])));
}

}  // namespace

const GeluLoops kGelu = {forward, forwardBf16, backward, backwardBf16};

}  // namespace abele::kernels::loops::ABELE_LOOPS
