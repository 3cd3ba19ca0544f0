#include "runtime/kernels/norm_gradients.h"

#include <array>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "base/processor_loops.h"
#include "runtime/kernels/intra_op_threads.h"

namespace abele::runtime {
namespace {

bool hasSameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

void requireBitsOfAten(int64_t rows, int64_t width, int64_t lanes, const std::array<bool, 3>& mask) {
  if (processor() != Processor::kAvx512) GTEST_SKIP() << "no loops for this processor";
  ASSERT_TRUE(givesNormGradients(rows, width, mask[0], mask[1], mask[2])) << rows << " " << width;
  const at::Tensor x = at::randn({lanes * rows, width}), weight = at::randn({width}), bias = at::randn({width});
  const auto [y, mean, scale] = at::native_layer_norm(x, {width}, weight, bias, 1e-5);
  const LaneNorm norm{.grad = at::randn({lanes * rows, width}),
                      .x = x,
                      .mean = mean,
                      .scale = scale,
                      .weight = mask[1] ? at::empty({lanes, width}) : at::Tensor(),
                      .bias = mask[2] ? at::empty({lanes, width}) : at::Tensor(),
                      .lanes = lanes};
  normGradientsInto(norm);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, lane * rows, rows); };
    const auto expected =
        at::native_layer_norm_backward(part(norm.grad), part(x), {width}, part(mean), part(scale), weight, bias, mask);
    if (mask[1]) {
      EXPECT_TRUE(hasSameBits(norm.weight.select(0, lane), std::get<1>(expected))) << rows << " " << width;
    }
    if (mask[2]) {
      EXPECT_TRUE(hasSameBits(norm.bias.select(0, lane), std::get<2>(expected))) << rows << " " << width;
    }
  }
}

TEST(NormGradients, AreThoseOfAtenForEachLane) {
  for (const int threads : {1, 2, 3}) {
    setIntraOpThreads(threads);
    for (const int64_t rows : {1, 2, 7, 16, 100})
      for (const int64_t width : {1, 16, 37, 128, 1000}) requireBitsOfAten(rows, width, 3, {true, true, true});
    requireBitsOfAten(16, 64, 2, {false, true, true});
    requireBitsOfAten(16, 64, 2, {true, true, false});
    requireBitsOfAten(16, 64, 2, {true, false, true});
  }
  setIntraOpThreads(1);
}

}  // namespace
}  // namespace abele::runtime
