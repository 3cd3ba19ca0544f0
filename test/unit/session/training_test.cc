// A Session's training steps against eager PyTorch, bit for bit.
#include <gtest/gtest.h>

#include "base/cat.h"
#include "networks.h"

namespace abele::test {
namespace {

constexpr int64_t kRows = 4;  // rows of a micro-batch
constexpr int kSteps = 5;

struct Case {
  std::string network = "mlp";
  int stages = 1;
  compile::Strategy strategy = compile::Strategy::kPipelined;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  optim::Optimizer optimizer = optim::SGD{.lr = 0.1};
  bool mean = true;
  schedule::ScheduleKind schedule = schedule::ScheduleKind::k1F1B;
};

std::string nameOf(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  const char* optimizers[] = {"Sgd", "Adam", "AdamW"};
  return cat(c.network, "_S", c.stages, c.strategy == compile::Strategy::kPipelined ? "pipelined" : "sharded", "_D",
             c.device_iterations, "_A", c.accumulation, "_", optimizers[c.optimizer.groups.index()],
             c.mean ? "" : "Sum", "_", info.index);
}

compile::ProgramOptions optionsOf(const Case& c) {
  compile::ProgramOptions options;
  options.training = true;
  options.device_iterations = c.device_iterations;
  options.gradient_accumulation = c.accumulation;
  options.mean_reduction = c.mean;
  options.strategy = c.strategy;
  options.threads_per_device = 1;
  options.schedule = c.schedule;
  return options;
}

class Training : public testing::TestWithParam<Case> {};

TEST_P(Training, EqualsEager) {
  const Case& c = GetParam();
  at::set_num_threads(1);
  const std::shared_ptr<Network> eager_network = makeNetwork(c.network, c.stages);
  const std::shared_ptr<Network> network = makeNetwork(c.network, c.stages);
  EagerTrainer eager(eager_network, {c.device_iterations, c.accumulation, c.mean, c.optimizer});
  const int64_t parts = c.device_iterations * c.accumulation;

  torch::manual_seed(11);
  std::vector<Tensors> data;
  for (int i = 0; i < kSteps; ++i) data.push_back(network->sample(kRows * parts));

  ModelView view(*network);
  session::Session session(optionsOf(c));
  // Both draw dropout masks from here, because the session copies the present state of the default stream at compile.
  torch::manual_seed(13);
  session.compile(view.program, data[0], specFor(*network, c.optimizer));
  EXPECT_EQ(firstDifference(*network, *eager_network), "") << "compile changed the model";

  for (int i = 0; i < kSteps; ++i) {
    const std::vector<Tensors> expected = eager.step(data[i]);
    const Tensors found = session.run(data[i]);
    ASSERT_EQ(found.size(), 2u);
    for (int64_t k = 0; k < parts; ++k) {
      const at::Tensor loss = parts == 1 ? found[0] : found[0][k];
      EXPECT_TRUE(torch::equal(loss, expected[k][0])) << "loss of step " << i << ", micro-batch " << k << ": "
                                                      << loss.item<float>() << " != " << expected[k][0].item<float>();
      EXPECT_TRUE(torch::equal(found[1].narrow(0, k * kRows, kRows), expected[k][1])) << "step " << i << ", " << k;
    }
  }
  session.copyWeightsToHost();
  EXPECT_EQ(firstDifference(*network, *eager_network), "");
}

std::vector<Case> stagesAndStrategies() {
  std::vector<Case> cases;
  for (int stages : {1, 2, 3, 5})
    for (compile::Strategy strategy : {compile::Strategy::kPipelined, compile::Strategy::kSharded})
      for (int64_t accumulation : {1, 2, 5})
        for (int64_t iterations : {1, 2})
          cases.push_back(
              {.stages = stages, .strategy = strategy, .device_iterations = iterations, .accumulation = accumulation});
  return cases;
}

std::vector<Case> networks() {
  std::vector<Case> cases;
  for (const char* network : {"conv", "lstm", "tied", "skip", "dropout"})
    for (int stages : {1, 2, 3, 5})
      for (compile::Strategy strategy : {compile::Strategy::kPipelined, compile::Strategy::kSharded})
        cases.push_back({.network = network,
                         .stages = stages,
                         .strategy = strategy,
                         .device_iterations = 2,
                         .accumulation = 5,
                         .optimizer = optim::AdamW{.lr = 0.01}});
  return cases;
}

std::vector<Case> optimizers() {
  const std::vector<optim::Optimizer> all = {
      optim::SGD{.lr = 0.05, .momentum = 0.9},
      optim::SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
      optim::SGD{.lr = 0.05, .weight_decay = 0.1, .maximize = true},
      optim::Adam{.lr = 0.01},
      optim::Adam{.lr = 0.01, .weight_decay = 0.1},
      optim::AdamW{.lr = 0.01, .beta1 = 0.8, .weight_decay = 0.1, .maximize = true},
  };
  std::vector<Case> cases;
  for (const optim::Optimizer& optimizer : all)
    for (bool mean : {true, false})
      cases.push_back({.stages = 2, .accumulation = 3, .optimizer = optimizer, .mean = mean});
  return cases;
}

std::vector<Case> schedules() {
  std::vector<Case> cases;
  for (schedule::ScheduleKind kind : {schedule::ScheduleKind::kGPipe, schedule::ScheduleKind::kInterleaved,
                                      schedule::ScheduleKind::kZeroBubble, schedule::ScheduleKind::kZeroBubble2})
    for (const char* network : {"mlp", "conv", "lstm", "tied", "dropout"})
      cases.push_back({.network = network,
                       .stages = 3,
                       .device_iterations = 2,
                       .accumulation = 5,
                       .optimizer = optim::AdamW{.lr = 0.01},
                       .schedule = kind});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Mlp, Training, testing::ValuesIn(stagesAndStrategies()), nameOf);
INSTANTIATE_TEST_SUITE_P(Networks, Training, testing::ValuesIn(networks()), nameOf);
INSTANTIATE_TEST_SUITE_P(Schedules, Training, testing::ValuesIn(schedules()), nameOf);
INSTANTIATE_TEST_SUITE_P(Optimizers, Training, testing::ValuesIn(optimizers()), nameOf);

// The same seed gives the same bytes: results, weights and executable.
TEST(Determinism, SameSeedSameBytes) {
  std::vector<std::string> runs;
  for (int i = 0; i < 2; ++i) {
    const std::shared_ptr<Network> network = makeNetwork("dropout", 3);
    // Its order depends on costs, so these must not be measurements.
    compile::ProgramOptions options = optionsOf(
        {.network = "dropout", .stages = 3, .accumulation = 4, .schedule = schedule::ScheduleKind::kZeroBubble});
    options.has_seed = true;
    options.seed = 99;
    ModelView view(*network);
    session::Session session(options);
    torch::manual_seed(5);
    const Tensors data = network->sample(16);
    torch::manual_seed(1000 + i);  // torch's own stream has no effect
    session.compile(view.program, data, specFor(*network, optim::SGD{.lr = 0.1}));
    std::string bytes = exe::encode(session.executable());
    for (int step = 0; step < 3; ++step)
      for (const at::Tensor& t : session.run(data))
        bytes.append(static_cast<const char*>(t.const_data_ptr()), t.nbytes());
    session.copyWeightsToHost();
    for (const auto& [name, t] : view.tensors) bytes.append(static_cast<const char*>(t.const_data_ptr()), t.nbytes());
    runs.push_back(std::move(bytes));
  }
  EXPECT_EQ(runs[0], runs[1]);
}

}  // namespace
}  // namespace abele::test
