// abele::simulate on costs by hand and on those of a model.
#include "abele/simulate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "abele/abele.h"

namespace simulate_test {

TEST(Simulate, TimesASchedule) {
  const std::string costs = R"({"stages": [{"forward_ns": 10, "backward_ns": 10, "weight_grad_ns": 10, "repeat": 4}]})";
  abele::SimulationOptions options;
  options.gradient_accumulation = 8;
  EXPECT_EQ(abele::simulate(costs, options).step_ns, (8 + 3) * 30);
  options.schedule = abele::Schedule::kZeroBubble;
  EXPECT_EQ(abele::simulate(costs, options).step_ns, 8 * 30 + 3 * 10);
  options.devices = 2;
  options.schedule = abele::Schedule::k1F1B;
  const abele::Simulation two = abele::simulate(costs, options);
  EXPECT_EQ(two.step_ns, (8 + 1) * 60);
  EXPECT_DOUBLE_EQ(two.bubble, 1.0 / 9);
  EXPECT_EQ(two.chart.substr(0, 10), "worker 0: ");
}

TEST(Simulate, LeavesOutTextsThatNobodyWants) {
  abele::SimulationOptions options;
  options.with_chart = options.with_trace = false;
  const abele::Simulation step = abele::simulate(R"({"stages": [{"forward_ns": 10}]})", options);
  EXPECT_TRUE(step.chart.empty() && step.trace.empty());
  EXPECT_EQ(step.step_ns, 10);
}

TEST(Simulate, RefusesWhatItCannotRead) {
  try {
    abele::simulate("{}");
    FAIL();
  } catch (const abele::Error& error) {
    EXPECT_STREQ(abele::errorCodeText(error.code()), "E0404");
  }
}

TEST(TrainingModel, TellsItsCosts) {
  torch::nn::Linear net(8, 8);
  auto model = abele::trainingModel(
      net, [net](at::Tensor x) mutable { return torch::mse_loss(net(x), x); }, abele::Options(), abele::optim::SGD{});
  model(torch::ones({4, 8}));
  const abele::Simulation step = abele::simulate(model.costs());
  EXPECT_GT(step.step_ns, 0);
  EXPECT_GT(step.peak_bytes, 8 * 8 * 4);
}

TEST(TrainingModel, IsSimulatedUnderItsOwnOptions) {
  torch::nn::Linear net(8, 8);
  abele::Options options;
  options.deviceIterations(2).deviceMemoryLimit(1 << 20).Training().gradientAccumulation(3);
  auto model = abele::trainingModel(
      net, [net](at::Tensor x) mutable { return torch::mse_loss(net(x), x); }, options, abele::optim::SGD{});
  try {
    model.simulate();
    FAIL();
  } catch (const abele::Error& error) {
    EXPECT_STREQ(abele::errorCodeText(error.code()), "E0705");
  }
  model.compile(torch::ones({24, 8}));
  const abele::Simulation step = model.simulate();
  const abele::Simulation same =
      abele::simulate(model.costs(), {.device_iterations = 2, .gradient_accumulation = 3, .device_bytes = 1 << 20});
  EXPECT_EQ(step.json, same.json);
  ASSERT_EQ(step.memory.size(), 1);
  EXPECT_EQ(step.memory[0].spare_bytes, (1 << 20) - step.peak_bytes);
}

TEST(PipelinedExecution, TakesMeasuredCosts) {
  const auto codeWith = [](const std::string& costs) -> std::string {
    torch::nn::Linear net(8, 8);
    abele::Options options;
    options.setExecutionStrategy(abele::PipelinedExecution().schedule(abele::Schedule::kZeroBubble).costs(costs));
    auto model = abele::trainingModel(
        net, [net](at::Tensor x) mutable { return torch::mse_loss(net(x), x); }, options, abele::optim::SGD{});
    try {
      model(torch::ones({4, 8}));
    } catch (const abele::Error& error) {
      return abele::errorCodeText(error.code());
    }
    return "none";
  };
  EXPECT_EQ(codeWith(""), "none");
  EXPECT_EQ(codeWith(R"({"stages": [{"forward_ns": 10, "backward_ns": 20}]})"), "none");
  EXPECT_EQ(codeWith(R"({"stages": [{}, {}]})"), "E0404");
  EXPECT_EQ(codeWith("fast"), "E0404");
}

}  // namespace simulate_test
