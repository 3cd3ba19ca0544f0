#include "kernels/convolutions.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace abele::kernels {
namespace {

struct Shape {
  std::vector<int64_t> images, weight, stride, padding, dilation;
  Steps steps() const { return {stride, padding, dilation}; }
};

// Small and large images, one and many; taps that never meet an element; parts of the images that differ in number.
const std::vector<Shape> kShapes = {
    {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1}, {0, 0}, {1, 1}},     {{3, 5, 7, 6}, {4, 5, 1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {{1, 5, 7, 6}, {4, 5, 1, 1}, {1, 1}, {0, 0}, {1, 1}},     {{2, 3, 3, 3}, {4, 3, 1, 1}, {2, 2}, {1, 1}, {1, 1}},
    {{2, 3, 9, 8}, {6, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}},     {{3, 4, 9, 12}, {2, 4, 3, 2}, {2, 3}, {2, 0}, {1, 2}},
    {{2, 2, 2, 2}, {3, 2, 5, 5}, {1, 1}, {2, 2}, {1, 1}},     {{2, 2, 5, 5}, {3, 2, 3, 3}, {3, 3}, {4, 4}, {3, 3}},
    {{5, 16, 40, 40}, {8, 16, 7, 7}, {1, 2}, {3, 3}, {1, 1}},
};

struct Convolutions : ::testing::TestWithParam<int> {
  void SetUp() override {
    before = at::get_num_threads();
    at::set_num_threads(GetParam());
    at::manual_seed(3);
  }
  void TearDown() override { at::set_num_threads(before); }
  int before = 1;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad, const at::Tensor& images,
                                                        const at::Tensor& weight, const Shape& shape) {
  return at::convolution_backward(grad, images, weight, at::OptionalIntArrayRef(), shape.stride, shape.padding,
                                  shape.dilation, false, {0, 0}, 1, {true, true, false});
}

at::Tensor forward(const at::Tensor& images, const at::Tensor& weight, const Shape& shape) {
  return at::convolution(images, weight, {}, shape.stride, shape.padding, shape.dilation, false, {0, 0}, 1);
}

// The bound of convolutions.h. size: the same sums of absolute values.
void expectWithin(const at::Tensor& found, const at::Tensor& exact, const at::Tensor& size, int64_t terms) {
  ASSERT_EQ(found.sizes(), exact.sizes());
  const at::Tensor error = (found.to(at::kDouble) - exact).abs();
  EXPECT_TRUE((error <= static_cast<double>(terms) * 0x1p-24 * size).all().item<bool>());
}

TEST_P(Convolutions, EveryWayIsWithinItsBound) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(shape.images) + ::testing::PrintToString(shape.weight));
    const at::Tensor images = at::randn(shape.images), weight = at::randn(shape.weight);
    const at::Tensor wide = images.to(at::kDouble), wide_weight = weight.to(at::kDouble);
    const at::Tensor exact = forward(wide, wide_weight, shape), grad = at::randn(exact.sizes());
    const auto [dx, dw, unused] = backward(grad.to(at::kDouble), wide, wide_weight, shape);
    const auto [dx_size, dw_size, unused_too] =
        backward(grad.to(at::kDouble).abs(), wide.abs(), wide_weight.abs(), shape);
    const at::Tensor size = forward(wide.abs(), wide_weight.abs(), shape);
    const int64_t terms = weight[0].numel(), gradient_terms = weight.select(1, 0).numel(),
                  places = exact.numel() / exact.size(1);
    for (const bool by_products : {true, false}) {
      const auto& convolve = by_products ? convolutionByProducts : fastConvolution;
      const auto& images_of = by_products ? imageGradientByProducts : fastImageGradient;
      const auto& weights_of = by_products ? weightGradientByProducts : fastWeightGradient;
      expectWithin(convolve(images, weight, shape.steps()), exact, size, terms);
      expectWithin(images_of(grad, images, weight, shape.steps()), dx, dx_size, gradient_terms);
      expectWithin(weights_of(grad, images, weight, shape.steps()), dw, dw_size, places);
    }
  }
}

TEST_P(Convolutions, NoImagesAndLargeImagesAreLeftToATen) {
  const Shape shape = kShapes[4];
  const at::Tensor none = at::empty({0, 3, 9, 8}), weight = at::randn(shape.weight);
  EXPECT_EQ(fastConvolution(none, weight, shape.steps()).sizes(), (std::vector<int64_t>{0, 6, 9, 8}));

  const Shape large{{1, 8, 200, 200}, {1, 8, 7, 7}, {1, 1}, {3, 3}, {1, 1}};  // 392 x 40,000 patches
  const at::Tensor images = at::randn(large.images), taps = at::randn(large.weight);
  EXPECT_TRUE(at::equal(fastConvolution(images, taps, large.steps()), forward(images, taps, large)));
}

INSTANTIATE_TEST_SUITE_P(Threads, Convolutions, ::testing::Values(1, 2),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace abele::kernels
