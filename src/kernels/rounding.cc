#include "kernels/rounding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Half.h>

#include <cmath>

#include "kernels/basic.h"
#include "kernels/parallel.h"

namespace abele::kernels {
namespace {

constexpr int64_t kGrain = 8192;  // elements in a range; fewer are not worth a thread

// splitmix64 turns a counter into 64 independent bits, so the result does not depend on the number of threads.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

c10::Half roundOne(float value, uint64_t bits) {
  const c10::Half nearest(value);
  const float found = static_cast<float>(nearest);
  if (found == value || !std::isfinite(found)) return nearest;
  // The bits of float16 numbers of one sign are in the order of the numbers.
  c10::Half low = nearest;
  if (std::abs(found) > std::abs(value)) low.x -= 1;
  c10::Half high = low;
  high.x += 1;
  const float below = std::abs(static_cast<float>(low)), above = std::abs(static_cast<float>(high));
  if (!std::isfinite(above)) return nearest;
  const float share = (std::abs(value) - below) / (above - below);
  const float chance = static_cast<float>(bits >> 40) * 0x1p-24f;
  return chance < share ? high : low;
}

}  // namespace

RoundingSeed RoundingSeed::of(uint64_t number) const { return {mix(value ^ mix(number))}; }

void roundInto(const at::Tensor& to, const at::Tensor& from, RoundingSeed seed) {
  const at::Tensor source = from.contiguous();
  const bool direct = to.is_contiguous();
  const at::Tensor target = direct ? to : at::empty(to.sizes(), to.options());
  const float* in = source.const_data_ptr<float>();
  c10::Half* out = target.mutable_data_ptr<c10::Half>();
  shareOut(source.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = roundOne(in[i], mix(seed.value + static_cast<uint64_t>(i)));
  });
  if (!direct) copyInto(to, target);
}

}  // namespace abele::kernels
