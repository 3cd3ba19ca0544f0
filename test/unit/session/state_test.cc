// Weights, buffers, optimizer state and random stream in and out of a session; its report.
#include <gtest/gtest.h>

#include "base/error.h"
#include "networks.h"

namespace abele::test {
namespace {

struct Fixture {
  explicit Fixture(const std::string& name, optim::Optimizer chosen = optim::Adam{.lr = 0.01})
      : network(makeNetwork(name, 2)), view(*network), optimizer(std::move(chosen)), session(options()) {
    torch::manual_seed(17);
    data = network->sample(8);
    session.compile(view.program, data, specFor(*network, optimizer));
  }
  static compile::ProgramOptions options() {
    compile::ProgramOptions options;
    options.training = true;
    options.gradient_accumulation = 2;
    options.threads_per_device = 1;
    options.has_seed = true;
    options.seed = 4;
    return options;
  }
  at::Tensor loss() { return session.run(data)[0]; }

  std::shared_ptr<Network> network;
  ModelView view;
  optim::Optimizer optimizer;
  session::Session session;
  Tensors data;
};

// A step depends on weights, buffers, optimizer state and random stream. Moving all of them moves the training.
TEST(State, MovesATrainingToAnotherSession) {
  for (const char* name : {"dropout", "conv"}) {
    Fixture a(name), b(name);
    for (int i = 0; i < 3; ++i) a.loss();
    a.session.copyWeightsToHost();
    {
      torch::NoGradGuard no_grad;
      for (size_t i = 0; i < a.view.tensors.size(); ++i) b.view.tensors[i].second.copy_(a.view.tensors[i].second);
    }
    b.session.copyWeightsToDevice();
    b.session.setOptimizerState(a.session.optimizerState());
    b.session.setRngState(a.session.rngState());
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(a.loss(), b.loss())) << name << ", step " << i;
    a.session.copyWeightsToHost();
    b.session.copyWeightsToHost();
    EXPECT_EQ(firstDifference(*a.network, *b.network), "") << name;
  }
}

TEST(State, NamesOptimizerStateByParameter) {
  Fixture f("mlp");
  f.loss();
  const std::map<std::string, at::Tensor> state = f.session.optimizerState();
  ASSERT_TRUE(state.contains("exp_avg/layer0.weight"));
  EXPECT_EQ(state.at("exp_avg/layer0.weight").sizes(), at::IntArrayRef({8, 6}));
  EXPECT_THROW(f.session.setOptimizerState({{"exp_avg/nothing", torch::zeros({1})}}), UserError);
  EXPECT_THROW(f.session.setOptimizerState({{"exp_avg/layer0.weight", torch::zeros({1})}}), UserError);
}

TEST(State, OptimizerValuesChangeAtTheNextStep) {
  Fixture f("mlp", optim::SGD{.lr = 0.1});
  const std::shared_ptr<Network> eager_network = makeNetwork("mlp", 2);
  at::set_num_threads(1);
  EagerTrainer fast(eager_network, {.accumulation = 2, .optimizer = optim::SGD{.lr = 0.1}});
  EagerTrainer slow(eager_network, {.accumulation = 2, .optimizer = optim::SGD{.lr = 0.001, .weight_decay = 0.5}});
  f.loss();
  fast.step(f.data);
  f.session.setOptimizer(specFor(*f.network, optim::SGD{.lr = 0.001, .weight_decay = 0.5}));
  f.loss();
  slow.step(f.data);
  f.session.copyWeightsToHost();
  EXPECT_EQ(firstDifference(*f.network, *eager_network), "");
}

TEST(State, UploadsOnlyTheNamedBuffers) {
  Fixture f("conv");
  torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : f.view.tensors)
    if (name == "norm0.running_mean" || name == "norm1.running_mean") tensor.fill_(3);
  f.session.copyBuffersToDevice({"norm0.running_mean"});
  f.session.copyWeightsToHost();
  for (auto& [name, tensor] : f.view.tensors) {
    if (name == "norm0.running_mean") {
      EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 3)));
    }
    if (name == "norm1.running_mean") {
      EXPECT_TRUE(torch::equal(tensor, torch::zeros_like(tensor)));
    }
  }
  EXPECT_THROW(f.session.copyBuffersToDevice({"conv0.weight"}), UserError);
}

// Gradient sums of a program without an optimizer, for callers with their own optimizers.
TEST(State, HandsOverGradientSumsOfPrograms) {
  at::set_num_threads(1);
  for (const int replicas : {1, 2}) {
    const std::shared_ptr<Network> network = makeNetwork("mlp", 2), eager = makeNetwork("mlp", 2);
    ModelView view(*network);
    compile::ProgramOptions options = Fixture::options();
    options.mean_reduction = false;
    options.replicas = replicas;
    session::Session session(options);
    const int parts = 2 * replicas;
    const Tensors data = network->sample(4 * parts);
    session.compile(view.program, data, compile::OptimizerSpec());
    for (int call = 0; call < 2; ++call) session.run(data);  // each call starts new sums
    const std::map<std::string, at::Tensor> sums = session.gradientSums();

    for (int k = 0; k < parts; ++k) eager->run(microBatch(data, k, parts))[0].backward();
    EXPECT_EQ(sums.size(), eager->named_parameters().size());
    for (const auto& parameter : eager->named_parameters()) {
      ASSERT_TRUE(sums.contains(parameter.key())) << parameter.key();
      // Replicas are added at the end, which is another order.
      EXPECT_TRUE(replicas == 1 ? torch::equal(sums.at(parameter.key()), parameter.value().grad())
                                : torch::allclose(sums.at(parameter.key()), parameter.value().grad(), 1e-4, 1e-6))
          << parameter.key();
    }
    session.copyWeightsToHost();
    EXPECT_EQ(firstDifference(*network, *eager), "") << "nothing updates the weights";
  }
  Fixture f("mlp");
  EXPECT_THROW(f.session.gradientSums(), UserError);
}

TEST(State, FrozenParametersStay) {
  std::shared_ptr<Network> network = makeNetwork("mlp", 2);
  network->named_parameters()["layer1.weight"].set_requires_grad(false);
  const at::Tensor before = network->named_parameters()["layer1.weight"].clone();
  ModelView view(*network);
  session::Session session(Fixture::options());
  const Tensors data = network->sample(8);
  session.compile(view.program, data, specFor(*network, optim::SGD{.lr = 0.5}));
  session.run(data);
  session.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(network->named_parameters()["layer1.weight"], before));
  EXPECT_FALSE(torch::equal(network->named_parameters()["layer0.weight"],
                            makeNetwork("mlp", 2)->named_parameters()["layer0.weight"]));
}

TEST(Report, AccountsForTheLastStep) {
  Fixture f("mlp");
  f.loss();
  const session::SessionReport report = f.session.report();
  ASSERT_EQ(report.stages.size(), 2u);
  EXPECT_GT(report.step_ns, 0);
  EXPECT_GE(report.bubble, 0);
  EXPECT_LT(report.bubble, 1);
  for (const session::SessionReport::Stage& stage : report.stages) {
    EXPECT_GT(stage.busy_ns, 0);
    EXPECT_EQ(stage.busy_ns + stage.waiting_ns, report.step_ns);
    EXPECT_GT(stage.peak_bytes, 0);
  }
  EXPECT_FALSE(f.session.capturedText().empty());
}

}  // namespace
}  // namespace abele::test
