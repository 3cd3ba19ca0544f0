// The loops of norm_loops.h, compiled once for each kind of processor in a namespace of its own. Includes no header
// with inline functions that other units use.
#ifndef ABELE_LOOPS
#error "ABELE_LOOPS names the kind of processor"
#endif

#include "kernels/norm_loops.h"

namespace abele::kernels::loops::ABELE_LOOPS {
namespace {

constexpr int64_t kLanes = 16;
// A vector of the width of one register, or of two; AnyLanes may start at any address.
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using AnyLanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(alignof(float)), may_alias));

inline Lanes load(const float* from) { return *reinterpret_cast<const AnyLanes*>(from); }
inline void store(float* to, Lanes value) { *reinterpret_cast<AnyLanes*>(to) = value; }

inline float sumOf(Lanes lanes) {
  float part[kLanes];
  store(part, lanes);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
}

// The sum of term(i) over a row, computed in 32 partial sums. `wide` gives the terms of several lanes at i, `one` gives
// a single term.
template <class Wide, class One>
inline float sumOver(int64_t width, const Wide& wide, const One& one) {
  Lanes even = {}, odd = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    even += wide(i);
    odd += wide(i + kLanes);
  }
  if (i + kLanes <= width) {
    even += wide(i);
    i += kLanes;
  }
  float rest = 0;
  for (; i < width; ++i) rest += one(i);
  return sumOf(even + odd) + rest;
}

void forward(int64_t begin, int64_t end, const NormRows& rows, const float* bias, float eps, float* y, float* mean,
             float* scale) {
  const int64_t width = rows.width;
  const float* weight = rows.weight;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = rows.x + row * width;
    float* to = y + row * width;
    const auto count = static_cast<float>(width);
    const float m = sumOver(width, [&](int64_t i) { return load(x + i); }, [&](int64_t i) { return x[i]; }) / count;
    const float squares = sumOver(
        width,
        [&](int64_t i) {
          const Lanes d = load(x + i) - m;
          return d * d;
        },
        [&](int64_t i) { return (x[i] - m) * (x[i] - m); });
    const float s = 1.0F / __builtin_sqrtf(squares / count + eps);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) store(to + i, (load(x + i) - m) * s * load(weight + i) + load(bias + i));
    for (; i < width; ++i) to[i] = (x[i] - m) * s * weight[i] + bias[i];
    mean[row] = m;
    scale[row] = s;
  }
}

// With g = grad w and h = (x - m) s: s (g - average of g - h times the average of g h).
void inputGradient(int64_t begin, int64_t end, const NormRows& rows, const float* grad_rows, const float* mean,
                   const float* scale, float* grad_x) {
  const int64_t width = rows.width;
  const float* weight = rows.weight;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = rows.x + row * width;
    const float* grad = grad_rows + row * width;
    float* to = grad_x + row * width;
    const float m = mean[row], s = scale[row], count = static_cast<float>(width);
    const float plain = sumOver(
                            width, [&](int64_t i) { return load(grad + i) * load(weight + i); },
                            [&](int64_t i) { return grad[i] * weight[i]; }) /
                        count;
    const float along =
        sumOver(
            width, [&](int64_t i) { return load(grad + i) * load(weight + i) * ((load(x + i) - m) * s); },
            [&](int64_t i) { return grad[i] * weight[i] * ((x[i] - m) * s); }) /
        count;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      store(to + i, s * (load(grad + i) * load(weight + i) - plain - (load(x + i) - m) * s * along));
    for (; i < width; ++i) to[i] = s * (grad[i] * weight[i] - plain - (x[i] - m) * s * along);
  }
}

void parameterGradients(int64_t begin, int64_t end, int64_t first, int64_t last, const NormRows& rows,
                        const float* grad_rows, const float* mean, const float* scale, float* grad_weight,
                        float* grad_bias) {
  const int64_t width = rows.width;
  int64_t i = first;
  for (; i + kLanes <= last; i += kLanes) {
    Lanes of_weight = load(grad_weight + i), of_bias = load(grad_bias + i);
    for (int64_t row = begin; row < end; ++row) {
      const Lanes grad = load(grad_rows + row * width + i);
      of_weight += grad * ((load(rows.x + row * width + i) - mean[row]) * scale[row]);
      of_bias += grad;
    }
    store(grad_weight + i, of_weight);
    store(grad_bias + i, of_bias);
  }
  for (; i < last; ++i)
    for (int64_t row = begin; row < end; ++row) {
      const float grad = grad_rows[row * width + i];
      grad_weight[i] += grad * ((rows.x[row * width + i] - mean[row]) * scale[row]);
      grad_bias[i] += grad;
    }
}

}  // namespace

const NormLoops kNorm = {forward, inputGradient, parameterGradients};

}  // namespace abele::kernels::loops::ABELE_LOOPS
