// Options of precision in the public C++ API.
#include <gtest/gtest.h>

#include <torch/torch.h>
#include <cmath>

#include "abele/abele.h"

namespace precision_test {

at::Tensor infer(const abele::Options& options, at::Tensor (*function)(const at::Tensor&), const at::Tensor& x) {
  auto model = abele::inferenceModel([function](at::Tensor given) { return function(given); }, options);
  model({at::ones_like(x)});
  return model({x}).at(0);
}

TEST(Precision, FloatingPointExceptions) {
  const auto inverse = [](const at::Tensor& x) { return x.reciprocal(); };
  const at::Tensor zeros = at::zeros({1, 4});
  EXPECT_TRUE(infer({}, inverse, zeros).isinf().all().item<bool>());
  try {
    abele::Options options;
    options.Precision().enableFloatingPointExceptions(true);
    infer(options, inverse, zeros);
    FAIL() << "nothing thrown";
  } catch (const abele::Error& error) {
    EXPECT_STREQ(abele::errorCodeText(error.code()), "E0604");
  }
}

TEST(Precision, LinearLayersGiveTheTypeOfTheirInput) {
  for (const bool has_bias : {true, false})
    for (const auto& [given, weights] : {std::pair(at::kHalf, at::kFloat), std::pair(at::kFloat, at::kHalf)}) {
      torch::manual_seed(1);
      torch::nn::Linear linear(torch::nn::LinearOptions(6, 4).bias(has_bias));
      linear->to(weights);
      const at::Tensor x = torch::randn({3, 6}).to(given);
      const at::Tensor bias = has_bias ? linear->bias.to(given) : at::Tensor();
      const at::Tensor expected = torch::linear(x, linear->weight.to(given), bias);
      auto model =
          abele::inferenceModel(linear, [&](at::Tensor y) { return torch::linear(y, linear->weight, linear->bias); });
      const at::Tensor result = model(x)[0];
      EXPECT_EQ(result.scalar_type(), given);
      EXPECT_TRUE(torch::equal(result, expected));
      auto training = abele::trainingModel(linear, [&](at::Tensor y) {
        return abele::identityLoss(torch::linear(y, linear->weight, linear->bias).square());
      });
      training(x);
      training.copyWeightsToHost();
      EXPECT_EQ(linear->weight.scalar_type(), weights);
      EXPECT_FALSE(torch::equal(torch::linear(x, linear->weight.to(given), bias), expected));
    }
}

TEST(Precision, StochasticRounding) {
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kHalf); };
  const at::Tensor x = at::full({1, 4096}, 1 + std::ldexp(1.0, -12));
  EXPECT_TRUE(infer({}, narrow, x).eq(1).all().item<bool>());
  const auto rounded = [&](uint64_t seed) {
    abele::Options options;
    options.randomSeed(seed).Precision().enableStochasticRounding(true);
    return infer(options, narrow, x);
  };
  EXPECT_NEAR(rounded(1).gt(1).to(at::kDouble).mean().item<double>(), 0.25, 0.04);
  EXPECT_TRUE(at::equal(rounded(1), rounded(1)));
  EXPECT_FALSE(at::equal(rounded(1), rounded(2)));
}

}  // namespace precision_test
