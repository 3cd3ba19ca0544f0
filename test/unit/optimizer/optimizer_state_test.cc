// The devices' optimizer state under PopTorch's and torch's names.
#include "optimizer/optimizer_state.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

namespace abele::test {
namespace {

using optimizer::firstDifference;
using optimizer::OptimizerTensors;

at::Tensor filled(double value) { return at::full({2}, value); }
session::StoredTensors stored(const OptimizerTensors& tensors) {
  session::StoredTensors all;
  for (const auto& [name, tensor] : tensors) all.emplace(name, session::stored(tensor));
  return all;
}
double valueOf(const at::Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

TEST(OptimizerState, HasPopTorchsNames) {
  const OptimizerTensors state = {{"exp_avg/a.w", filled(1)}, {"exp_avg_sq/a.w", filled(2)}, {"step/a.w", filled(3)}};
  const OptimizerTensors named = optimizer::inPopTorch(stored(state));
  ASSERT_EQ(named.size(), 3u);
  EXPECT_EQ(valueOf(named.at("Accl1___a.w")), 1);
  EXPECT_EQ(valueOf(named.at("Accl2___a.w")), 2);
  EXPECT_EQ(valueOf(named.at("Step___a.w")), 3);
  const OptimizerTensors back =
      optimizer::fromPopTorch({{"Accl1___a.w", filled(5)}, {"Other", filled(6)}}, stored(state));
  ASSERT_EQ(back.size(), 1u) << "what is not given stays";
  EXPECT_EQ(valueOf(back.at("exp_avg/a.w")), 5);
}

TEST(OptimizerState, HasPopTorchsNumbers) {
  compile::OptimizerSpec sgd;
  sgd.groups = {{{"lr", 0.5}, {"weight_decay", 0.25}, {"dampening", 0.5}}};
  sgd.loss_scaling = 2;
  sgd.rules.kind = OptimizerKind::kSgd;
  const OptimizerTensors numbers = optimizer::numbersInPopTorch(sgd, {{"w"}});
  EXPECT_EQ(valueOf(numbers.at("lossScaling_FLOAT").view({1})), 2);
  EXPECT_EQ(valueOf(numbers.at("scaledLearningRate0___specific___w").view({1})), 0.125);
  EXPECT_EQ(valueOf(numbers.at("weightDecayScaleFactor0___specific___w").view({1})), 0.9375);
}

TEST(OptimizerState, IsTorchsWithTheStepFirst) {
  OptimizerTensors state = {{"exp_avg/w", filled(1)},
                            {"exp_avg_sq/w", filled(2)},
                            {"step/w", at::scalar_tensor(3)},
                            {"exp_avg/v", filled(4)}};
  const optimizer::TorchState kept = optimizer::inTorch(OptimizerKind::kAdam, stored(state), "w", 3);
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].first, "step");
  EXPECT_EQ(kept[1].first, "exp_avg");
  EXPECT_EQ(kept[2].first, "exp_avg_sq");
  state["step/w"] = at::scalar_tensor(0);
  EXPECT_TRUE(optimizer::inTorch(OptimizerKind::kAdam, stored(state), "w", 3).empty()) << "no update has reached it";
}

TEST(OptimizerState, IsReadOneTensorAtATime) {
  int64_t held = 0, most = 0;  // tensors that were read and still live
  session::StoredTensors state;
  for (const char* name : {"exp_avg/v", "exp_avg_sq/v", "exp_avg/w", "exp_avg_sq/w"})
    state[name] = {.type = {}, .read = [&] {
                     most = std::max(most, ++held);
                     return at::from_blob(
                         new double[2]{1, 2}, {2},
                         [&](void* memory) {
                           --held;
                           delete[] static_cast<double*>(memory);
                         },
                         at::kDouble);
                   }};
  for (const char* parameter : {"v", "w"})
    EXPECT_EQ(optimizer::inTorch(OptimizerKind::kAdam, state, parameter, 1).size(), 2u);
  EXPECT_EQ(held, 0);
  EXPECT_EQ(most, 2) << "those of one parameter, without copies of their own";
}

TEST(OptimizerState, ComesFromTorchs) {
  const session::StoredTensors current =
      stored({{"exp_avg/w", filled(0)}, {"exp_avg_sq/w", filled(0)}, {"step/w", at::scalar_tensor(0)}});
  OptimizerTensors state;
  const OptimizerTensors given = {{"exp_avg", filled(1)}, {"step", at::scalar_tensor(7)}};
  EXPECT_EQ(optimizer::takeFromTorch(OptimizerKind::kAdam, given, "w", current, state), 7);
  EXPECT_EQ(valueOf(state.at("exp_avg/w")), 1);
  EXPECT_EQ(state.at("step/w").item<double>(), 7);
  EXPECT_FALSE(state.contains("exp_avg_sq/w"));
  EXPECT_EQ(optimizer::takeFromTorch(OptimizerKind::kAdam, std::nullopt, "w", current, state), 0);
}

TEST(OptimizerState, OfSgdCountsAStepWhereThereIsAVelocity) {
  const session::StoredTensors current = stored({{"momentum_buffer/w", filled(0)}, {"step/w", at::scalar_tensor(0)}});
  OptimizerTensors state;
  EXPECT_EQ(optimizer::takeFromTorch(OptimizerKind::kSgd, OptimizerTensors{{"momentum_buffer", filled(2)}}, "w",
                                     current, state),
            1);
  EXPECT_EQ(state.at("step/w").item<double>(), 1);
  OptimizerTensors none;
  EXPECT_EQ(optimizer::takeFromTorch(OptimizerKind::kSgd, OptimizerTensors{}, "w", current, none), 1);
  EXPECT_EQ(none.at("step/w").item<double>(), 0);
}

TEST(OptimizerFields, TheFirstDifferenceIsNamed) {
  compile::OptimizerSpec sent;
  sent.groups = {{{"lr", 0.1}}, {{"lr", 0.1}}, {{"lr", 1}}};
  sent.rules.kind = OptimizerKind::kSgd;
  compile::OptimizerSpec now = sent;
  EXPECT_EQ(firstDifference(sent, now), "");
  now.groups[2]["lr"] = 2;  // defaults
  EXPECT_EQ(firstDifference(sent, now), "");
  now.groups[1]["lr"] = 0.5;
  EXPECT_EQ(firstDifference(sent, now), "lr of param_groups[1]");
  now.loss_scaling = 2;
  EXPECT_EQ(firstDifference(sent, now), "loss_scaling");
  now = sent;
  now.groups.pop_back();
  EXPECT_EQ(firstDifference(sent, now), "the number of parameter groups");
}

}  // namespace
}  // namespace abele::test
