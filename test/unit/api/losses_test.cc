// The value that training starts from.
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace losses_test {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using at::Tensor;

template <class Loss>
Tensor weightAfterAStep(Loss loss) {
  torch::manual_seed(1);
  nn::Linear net(4, 3);
  auto model = abele::trainingModel(
      net, [&](Tensor x, Tensor y) { return loss(net, x, y); }, abele::Options().threadsPerDevice(1),
      abele::optim::SGD{.lr = 0.5});
  torch::manual_seed(2);
  const Tensor x = torch::randn({6, 4});
  model(x, torch::softmax(torch::randn({6, 3}), 1));
  model.copyWeightsToHost();
  return net->weight;
}

template <class Loss>
Tensor eagerWeightAfterAStep(Loss loss) {
  torch::manual_seed(1);
  nn::Linear net(4, 3);
  torch::manual_seed(2);
  const Tensor x = torch::randn({6, 4});
  loss(net, x, torch::softmax(torch::randn({6, 3}), 1)).backward();
  torch::NoGradGuard no_grad;
  return net->weight.add_(net->weight.grad(), -0.5);
}

TEST(Losses, DivergenceByBatchIsOneLoss) {
  const auto loss = [](nn::Linear& net, Tensor x, Tensor y) {
    return F::kl_div(torch::log_softmax(net(x), 1), y, F::KLDivFuncOptions(torch::kBatchMean));
  };
  EXPECT_TRUE(torch::equal(weightAfterAStep(loss), eagerWeightAfterAStep(loss)));
}

TEST(Losses, MessagesAreInTheLanguageOfTheProgram) {
  const std::string text =
      abele::test::errorOf([] { weightAfterAStep([](nn::Linear& net, Tensor x, Tensor) { return net(x).sum(); }); });
  EXPECT_NE(text.find("E0102"), std::string::npos);
  EXPECT_NE(text.find("return abele::identityLoss(loss, abele::Reduction::kNone)"), std::string::npos);
  EXPECT_EQ(text.find("poptorch"), std::string::npos);
}

TEST(Losses, ALossInsideOfWhatForwardReturnsIsWarnedOf) {
  const auto warningsWith = [](auto loss) {
    testing::internal::CaptureStderr();
    weightAfterAStep(loss);
    return testing::internal::GetCapturedStderr();
  };
  const auto mse = [](nn::Linear& net, Tensor x, Tensor y) { return torch::mse_loss(net(x), y); };
  EXPECT_EQ(warningsWith(mse), "");
  const auto half = [&](nn::Linear& net, Tensor x, Tensor y) { return mse(net, x, y) / 2; };
  EXPECT_NE(warningsWith(half).find("abele::identityLoss"), std::string::npos);
  EXPECT_EQ(warningsWith([&](nn::Linear& net, Tensor x, Tensor y) {
              return abele::identityLoss(half(net, x, y), abele::Reduction::kNone);
            }),
            "");
  EXPECT_EQ(warningsWith([&](nn::Linear& net, Tensor x, Tensor y) {
              const Tensor loss = mse(net, x, y);
              return std::pair(loss, loss.sqrt());
            }),
            "");
}

std::string warningsWith(const std::function<Tensor(nn::Linear&, Tensor, Tensor)>& loss) {
  testing::internal::CaptureStderr();
  weightAfterAStep(loss);
  return testing::internal::GetCapturedStderr();
}

TEST(Losses, ReductionsOfALossOfManyElements) {
  const auto unreduced = [](nn::Linear& net, Tensor x, Tensor y) {
    return F::mse_loss(net(x), y, F::MSELossFuncOptions(torch::kNone));
  };
  // Training starts with ones, which are the sum's gradient and not the mean's.
  const auto sum = [&](nn::Linear& net, Tensor x, Tensor y) { return unreduced(net, x, y).sum(); };
  EXPECT_TRUE(torch::equal(weightAfterAStep(sum), eagerWeightAfterAStep(sum)));
  EXPECT_EQ(warningsWith(sum), "");
  const std::string text =
      warningsWith([&](nn::Linear& net, Tensor x, Tensor y) { return unreduced(net, x, y).mean(); });
  EXPECT_NE(text.find("abele::identityLoss"), std::string::npos) << text;
  const auto marked = [&](nn::Linear& net, Tensor x, Tensor y) {
    return abele::identityLoss(unreduced(net, x, y).mean(), abele::Reduction::kNone);
  };
  EXPECT_TRUE(torch::equal(weightAfterAStep(marked), eagerWeightAfterAStep(marked)));
  EXPECT_EQ(warningsWith(marked), "");
  EXPECT_EQ(warningsWith([](nn::Linear& net, Tensor x, Tensor y) { return torch::mse_loss(net(x), y).mean(); }), "");
}

TEST(Losses, AFunctionOfTheLossIsWarnedOf) {
  const std::string text =
      warningsWith([](nn::Linear& net, Tensor x, Tensor y) { return torch::mse_loss(net(x), y).sqrt(); });
  EXPECT_NE(text.find("is made of its loss"), std::string::npos) << text;
  EXPECT_NE(text.find("abele::identityLoss"), std::string::npos) << text;
  EXPECT_EQ(warningsWith([](nn::Linear& net, Tensor x, Tensor y) { return torch::mse_loss(net(x), y).exp(); }), "");
}

TEST(Losses, ALossThatTrainsNothingIsWarnedOf) {
  const std::string text =
      warningsWith([](nn::Linear& net, Tensor x, Tensor y) { return torch::mse_loss(net(x).detach(), y); });
  EXPECT_NE(text.find("the loss depends on no parameter that is trained"), std::string::npos) << text;
}

}  // namespace losses_test
