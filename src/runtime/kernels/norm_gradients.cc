#include "runtime/kernels/norm_gradients.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/processor_loops.h"
#include "runtime/kernels/known_trials.h"
#include "runtime/kernels/lane_loops.h"
#include "runtime/kernels/parallel.h"

namespace abele::runtime {
namespace {

#if defined(__x86_64__)
// Elements that are worth another thread.
constexpr int64_t kRange = 32768;

// ATen shares rows out like this.
int64_t shareOf(int64_t rows) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), rows);
  return (rows + threads - 1) / threads;
}

void run(const LaneNorm& norm) {
  const int64_t rows = norm.mean.numel() / norm.lanes, width = norm.x.numel() / norm.mean.numel();
  const auto numbers = [](const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); };
  const auto sums = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
  };
  const loops::NormGradients gradients{.grad = numbers(norm.grad),
                                       .x = numbers(norm.x),
                                       .mean = numbers(norm.mean),
                                       .scale = numbers(norm.scale),
                                       .rows = rows,
                                       .width = width,
                                       .share = shareOf(rows),
                                       .weight = sums(norm.weight),
                                       .bias = sums(norm.bias)};
  shareOut(norm.lanes, std::max<int64_t>(1, kRange / (rows * width)),
           [&](int64_t begin, int64_t end) { loops::kLaneLoopsAvx512.normGradients(gradients, begin, end); });
}

bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == b.numel() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool trial(int64_t rows, int64_t width, const std::array<bool, 3>& mask) {
  constexpr int64_t kLanes = 2;
  at::Generator generator = at::detail::createCPUGenerator(/*seed_val=*/20261125);
  const auto random = [&](at::IntArrayRef sizes) { return at::empty(sizes, at::kFloat).normal_(0, 1, generator); };
  const int64_t rounds = trialRounds(width, kLanes * rows * width, /*least=*/1);
  for (int64_t round = 0; round < rounds; ++round) {
    LaneNorm norm{.grad = random({kLanes * rows, width}),
                  .x = random({kLanes * rows, width}),
                  .mean = random({kLanes * rows, 1}),
                  .scale = random({kLanes * rows, 1}).abs_(),
                  .weight = mask[1] ? random({kLanes, width}) : at::Tensor(),
                  .bias = mask[2] ? random({kLanes, width}) : at::Tensor(),
                  .lanes = kLanes};
    run(norm);
    const at::Tensor weight = random({width}), bias = random({width});
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto part = [&](const at::Tensor& all) { return all.narrow(0, lane * rows, rows); };
      const auto expected = at::native_layer_norm_backward(part(norm.grad), part(norm.x), {width}, part(norm.mean),
                                                           part(norm.scale), weight, bias, mask);
      if (mask[1] && !sameBits(norm.weight.select(0, lane), std::get<1>(expected))) return false;
      if (mask[2] && !sameBits(norm.bias.select(0, lane), std::get<2>(expected))) return false;
    }
  }
  return true;
}
#endif

}  // namespace

bool givesNormGradients([[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t width, [[maybe_unused]] bool of_input,
                        [[maybe_unused]] bool of_weight, [[maybe_unused]] bool of_bias) {
#if defined(__x86_64__)
  if (processor() != Processor::kAvx512 || rows == 0 || width == 0) return false;
  const std::array<int64_t, 4> key = {rows, width, at::get_num_threads(), of_input * 4 + of_weight * 2 + of_bias};
  static auto& known = *new KnownTrials<std::array<int64_t, 4>, bool>;
  return known.of(key, [&] { return trial(rows, width, {of_input, of_weight, of_bias}); });
#else
  return false;
#endif
}

void normGradientsInto([[maybe_unused]] const LaneNorm& norm) {
#if defined(__x86_64__)
  run(norm);
#endif
}

}  // namespace abele::runtime
