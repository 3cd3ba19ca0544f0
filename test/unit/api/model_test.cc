// The public C++ API on ordinary torch::nn modules.
#include <gtest/gtest.h>

#include <torch/torch.h>
#include <cmath>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace model_test {

using abele::test::codeOf;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    first = register_module("first", nn::Linear(4, 8));
    second = register_module("second", nn::Linear(8, 2));
    norm = register_module("norm", nn::BatchNorm1d(8));
  }
  at::Tensor forward(const at::Tensor& x) {
    abele::Block::start("first", 0);
    const at::Tensor h = torch::relu(norm(first(x)));
    abele::Block::start("second", 1);
    return second(h);
  }
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

abele::TrainingModel train(Net net, const abele::Options& options, const abele::optim::Optimizer& optimizer) {
  return abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(net(x), y); }, options, optimizer);
}

abele::Options accumulating(int64_t micro_batches) {
  abele::Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(micro_batches);
  return options;
}

struct Batch {
  explicit Batch(int64_t rows) {
    torch::manual_seed(2);
    x = torch::randn({rows, 4});
    y = torch::randn({rows, 2});
  }
  at::Tensor x, y;
};

TEST(TrainingModel, EqualsEager) {
  at::set_num_threads(1);
  Net net, eager;
  const Batch batch(12);
  auto model = train(net, accumulating(3), abele::optim::SGD{.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    eager->zero_grad();
    at::Tensor loss;
    for (int64_t k = 0; k < 3; ++k) {
      loss = torch::mse_loss(eager(batch.x.narrow(0, 4 * k, 4)), batch.y.narrow(0, 4 * k, 4));
      (loss / 3).backward();
    }
    torch::NoGradGuard no_grad;
    for (at::Tensor& p : eager->parameters()) p.add_(p.grad(), -0.1);
    EXPECT_TRUE(torch::equal(model(batch.x, batch.y)[0], loss)) << "step " << step;  // Final: the last micro-batch
  }
  model.copyWeightsToHost();
  for (const auto& p : eager->named_parameters())
    EXPECT_TRUE(torch::equal(net->named_parameters()[p.key()], p.value())) << p.key();
  for (const auto& b : eager->named_buffers())
    EXPECT_TRUE(torch::equal(net->named_buffers()[b.key()], b.value())) << b.key();
}

TEST(TrainingModel, GivesTheSameWeightsUnderEverySchedule) {
  const Batch batch(12);
  std::vector<at::Tensor> weights;
  for (abele::Schedule schedule : {abele::Schedule::k1F1B, abele::Schedule::kGPipe, abele::Schedule::kInterleaved,
                                   abele::Schedule::kZeroBubble, abele::Schedule::kZeroBubble2}) {
    Net net;
    abele::Options options = accumulating(3);
    options.setExecutionStrategy(abele::PipelinedExecution(abele::AutoStage::kAutoIncrement).schedule(schedule));
    auto model = train(net, options, abele::optim::AdamW{.lr = 0.1});
    for (int step = 0; step < 3; ++step) model(batch.x, batch.y);
    model.copyWeightsToHost();
    weights.push_back(net->first->weight.detach().clone());
  }
  EXPECT_FALSE(torch::equal(weights[0], Net()->first->weight));
  for (const at::Tensor& w : weights) EXPECT_TRUE(torch::equal(w, weights[0]));
}

TEST(TrainingModel, BringsWeightsBackWhenItEnds) {
  const Batch batch(4);
  Net by_copy, by_destroy, by_end;
  {
    auto model = train(by_copy, accumulating(1), abele::optim::AdamW{});
    model(batch.x, batch.y);
    model.copyWeightsToHost();
  }
  auto model = train(by_destroy, accumulating(1), abele::optim::AdamW{});
  model(batch.x, batch.y);
  model.destroy();
  EXPECT_FALSE(model.isCompiled());
  { train(by_end, accumulating(1), abele::optim::AdamW{})(batch.x, batch.y); }
  for (const auto& p : by_copy->named_parameters()) {
    EXPECT_FALSE(torch::equal(Net()->named_parameters()[p.key()], p.value())) << p.key();
    EXPECT_TRUE(torch::equal(by_destroy->named_parameters()[p.key()], p.value())) << p.key();
    EXPECT_TRUE(torch::equal(by_end->named_parameters()[p.key()], p.value())) << p.key();
  }
  model(batch.x, batch.y);  // compiles again
  EXPECT_TRUE(model.isCompiled());
}

TEST(TrainingModel, OnePerModule) {
  Net net;
  auto model = train(net, accumulating(1), abele::optim::SGD{});
  EXPECT_EQ(codeOf([&] { train(net, accumulating(1), abele::optim::SGD{}); }), "E0709");
  model.destroy();
  auto next = train(net, accumulating(1), abele::optim::SGD{});
  EXPECT_EQ(codeOf([&] { model(Batch(2).x, Batch(2).y); }), "E0709");
}

class TrainingInTheModule : public testing::TestWithParam<bool> {};

TEST_P(TrainingInTheModule, WorksInItsMemory) {
  const Batch batch(4);
  Net net, eager;
  auto inference = abele::inferenceModel(net, [net](at::Tensor x) mutable { return net(x); });
  if (const bool is_inference_first = GetParam(); is_inference_first) inference(batch.x);
  auto model = train(net, accumulating(1), abele::optim::SGD{.lr = 0.5});
  torch::optim::SGD theirs(eager->parameters(), 0.5);
  const void* address = net->first->weight.const_data_ptr();
  for (int step = 0; step < 3; ++step) {
    const at::Tensor loss = torch::mse_loss(eager(batch.x), batch.y);
    EXPECT_TRUE(torch::equal(model(batch.x, batch.y)[0], loss));
    theirs.zero_grad();
    loss.backward();
    theirs.step();
    torch::NoGradGuard no_grad;
    for (Net* of : {&net, &eager}) {
      for (const auto& p : (*of)->named_parameters())
        EXPECT_TRUE(torch::equal(p.value(), eager->named_parameters()[p.key()])) << p.key();
      (*of)->second->bias.add_(0.25);
    }
    EXPECT_TRUE(torch::equal(inference(batch.x)[0], eager(batch.x)));
  }
  EXPECT_EQ(net->first->weight.const_data_ptr(), address);
}

INSTANTIATE_TEST_SUITE_P(BesideInference, TrainingInTheModule, testing::Bool());

TEST(TrainingModel, UploadsWhatTheUserChanged) {
  const Batch batch(4);
  Net net;
  auto model = train(net, accumulating(1).shareWeights(false), abele::optim::SGD{.lr = 0});
  const at::Tensor before = model(batch.x, batch.y)[0];
  {
    torch::NoGradGuard no_grad;
    net->second->bias.add_(1);
  }
  EXPECT_TRUE(torch::equal(model(batch.x, batch.y)[0], before));
  model.copyWeightsToDevice();
  EXPECT_FALSE(torch::equal(model(batch.x, batch.y)[0], before));
}

TEST(InferenceModel, FollowsTheLiveTrainingModel) {
  const Batch batch(6);
  Net net;
  net->train();
  auto training = train(net, accumulating(1), abele::optim::SGD{.lr = 0.1});
  training(batch.x, batch.y);
  net->eval();  // after the training step was compiled
  auto inference = abele::inferenceModel(net, [net](at::Tensor x) mutable { return net(x); });
  for (int i = 0; i < 3; ++i) {
    training(batch.x, batch.y);
    const at::Tensor found = inference(batch.x)[0];
    EXPECT_TRUE(torch::equal(found, net(batch.x))) << "call " << i;  // the module has them as well now
  }
}

TEST(InferenceModel, SeesWhatTheUserUploadedForTraining) {
  const Batch batch(6);
  Net net;
  net->eval();
  const abele::Options copies = accumulating(1).shareWeights(false);
  auto training = train(net, copies, abele::optim::SGD{.lr = 0.1});
  auto inference =
      abele::inferenceModel(net, [net](at::Tensor x) mutable { return net(x); }, abele::Options().shareWeights(false));
  training(batch.x, batch.y);
  inference(batch.x);
  {
    torch::NoGradGuard no_grad;
    net->second->bias.add_(1);
  }
  training.copyWeightsToDevice();
  EXPECT_TRUE(torch::equal(inference(batch.x)[0], net(batch.x)));
}

TEST(InferenceModel, TakesPlainCallables) {
  const at::Tensor x = torch::randn({4, 3}), y = torch::randn({4, 3});
  auto sum =
      abele::inferenceModel([](at::Tensor a, at::Tensor b) { return a + b; }, abele::Options().deviceIterations(2));
  EXPECT_TRUE(torch::equal(sum(x, y)[0], x + y));
  auto pair = abele::inferenceModel([](const at::Tensor& a) { return std::make_tuple(a * 2, a.sum()); });
  EXPECT_TRUE(torch::equal(pair(x)[0], x * 2));
  EXPECT_TRUE(torch::equal(pair(x)[1], x.sum()));
  auto vector = abele::inferenceModel(
      [](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{in[1], in[0] * 3}; });
  EXPECT_TRUE(torch::equal(vector(x, y)[1], x * 3));
  EXPECT_TRUE(torch::equal(vector({x, y})[0], y));
}

TEST(InferenceModel, TakesModulesAndWhatPointsToThem) {
  const at::Tensor x = torch::randn({2, 3});
  nn::Linear holder(3, 2);
  auto shared = std::make_shared<nn::LinearImpl>(3, 2);
  nn::LinearImpl plain(3, 2);
  EXPECT_TRUE(torch::equal(abele::inferenceModel(holder, [&](at::Tensor t) { return holder(t); })(x)[0], holder(x)));
  EXPECT_TRUE(torch::equal(abele::inferenceModel(shared, [&](at::Tensor t) { return shared->forward(t); })(x)[0],
                           shared->forward(x)));
  EXPECT_TRUE(torch::equal(abele::inferenceModel(plain, [&](at::Tensor t) { return plain.forward(t); })(x)[0],
                           plain.forward(x)));
}

TEST(Models, ReportStagesAsText) {
  const Batch batch(4);
  Net net;
  auto model = train(net, accumulating(2), abele::optim::SGD{});
  EXPECT_EQ(codeOf([&] { model.report(); }), "E0705");
  model(batch.x, batch.y);
  const std::string text = model.report();
  for (const char* part : {"busy ms", "waiting ms", "peak MiB", "bubble", "compile", "schedule "})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5) << text;  // header, two stages, the step, the schedule
}

TEST(Models, SetOptimizerChangesValuesOnly) {
  const Batch batch(4);
  Net net;
  auto model = train(net, accumulating(1), abele::optim::SGD{.lr = 0});
  model(batch.x, batch.y);
  const at::Tensor before = net->first->weight.clone();
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(net->first->weight, before));
  model.setOptimizer(abele::optim::SGD{.lr = 0.5});
  model(batch.x, batch.y);
  model.copyWeightsToHost();
  EXPECT_FALSE(torch::equal(net->first->weight, before));
  EXPECT_EQ(codeOf([&] { model.setOptimizer(abele::optim::Adam{}); }), "E0706");
}

TEST(Models, ParameterGroups) {
  const Batch batch(4);
  Net net;
  using abele::optim::SGD;
  auto model =
      train(net, accumulating(1), std::vector<SGD>{{.lr = 0.0, .parameters = {"first", "norm.bias"}}, {.lr = 0.5}});
  const at::Tensor first = net->first->weight.clone(), second = net->second->weight.clone();
  model(batch.x, batch.y);
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(net->first->weight, first));
  EXPECT_FALSE(torch::equal(net->second->weight, second));
  model.destroy();
  EXPECT_EQ(codeOf([&] { train(net, accumulating(1), SGD{.parameters = {"fir"}}); }), "E0706");
  EXPECT_EQ(codeOf([&] { train(net, accumulating(1), std::vector<SGD>{{}, {}}); }), "E0706");
  EXPECT_EQ(codeOf([&] { train(net, accumulating(1), SGD{.lr = -1}); }), "E0706");
  EXPECT_EQ(codeOf([&] { train(net, accumulating(1), SGD{.nesterov = true}); }), "E0706");
}

TEST(TrainingModel, RmspropEqualsTorch) {
  Net net, eager;
  const Batch batch(4);
  auto model = train(net, accumulating(1), abele::optim::RMSprop{.lr = 0.01, .momentum = 0.9, .centered = true});
  torch::optim::RMSprop theirs(eager->parameters(), torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
  for (int step = 0; step < 3; ++step) {
    theirs.zero_grad();
    torch::mse_loss(eager(batch.x), batch.y).backward();
    theirs.step();
    model(batch.x, batch.y);
  }
  model.copyWeightsToHost();
  for (const auto& p : eager->named_parameters())
    EXPECT_TRUE(torch::allclose(net->named_parameters()[p.key()], p.value())) << p.key();
}

TEST(TrainingModel, ClipsAndScales) {
  Net net, eager;
  const Batch batch(4);
  abele::optim::Optimizer optimizer = abele::optim::SGD{.lr = 1};
  optimizer.max_grad_norm = 0.125;
  optimizer.loss_scaling = 64;
  auto model = train(net, accumulating(1), optimizer);
  model(batch.x, batch.y);
  model.copyWeightsToHost();
  double squares = 0;
  for (const auto& p : eager->named_parameters())
    squares += (net->named_parameters()[p.key()] - p.value()).square().sum().item<double>();
  EXPECT_NEAR(std::sqrt(squares), 0.125, 1e-6);
  optimizer.max_grad_norm = 1;
  EXPECT_EQ(codeOf([&] { model.setOptimizer(optimizer); }), "E0706");
  optimizer.max_grad_norm = -1;
  EXPECT_EQ(codeOf([&] { train(Net(), accumulating(1), optimizer); }), "E0706");
}

TEST(TrainingModel, LambMovesEachParameterByItsOwnNorm) {
  Net net;
  const Batch batch(4);
  const at::Tensor before = net->first->weight.detach().clone();
  auto model = train(net, accumulating(1), abele::optim::LAMB{.lr = 0.25, .weight_decay = 0});
  model(batch.x, batch.y);
  model.copyWeightsToHost();
  EXPECT_NEAR((net->first->weight - before).norm().item<double>(), 0.25 * before.norm().item<double>(), 1e-5);
}

TEST(Models, StrategiesGiveTheSameNumbers) {
  const Batch batch(12);
  const abele::ExecutionStrategy strategies[] = {
      abele::PipelinedExecution(),
      abele::ShardedExecution(),
      abele::PipelinedExecution(abele::AutoStage::kAutoIncrement),
      abele::autoSplit(2),
      abele::autoSplit(4).schedule(abele::Schedule::kAuto),
      abele::autoSplit(),
      abele::wholeMachine(),
      abele::ShardedExecution{abele::Stage{"first"}.ipu(0), abele::Stage{"second"}.ipu(1)}};
  at::Tensor expected;
  for (const abele::ExecutionStrategy& strategy : strategies) {
    Net net;
    auto model = train(net, accumulating(3).setExecutionStrategy(strategy).outputMode(abele::OutputMode::kAll),
                       abele::optim::SGD{});
    model(batch.x, batch.y);
    const at::Tensor losses = model(batch.x, batch.y)[0];
    EXPECT_EQ(losses.sizes(), at::IntArrayRef({3}));
    EXPECT_TRUE(!expected.defined() || torch::equal(losses, expected));
    expected = losses;
  }
}

TEST(Models, AutoSplitNeedsAPieceForEveryDevice) {
  Net net;
  const Batch batch(4);
  EXPECT_EQ(codeOf([&] {
              train(net, accumulating(1).setExecutionStrategy(abele::autoSplit(60)), abele::optim::SGD{})(batch.x,
                                                                                                          batch.y);
            }),
            "E0406");
  EXPECT_EQ(codeOf([] { abele::autoSplit(-1); }), "E0702");
}

TEST(Annotations, DoNothingOnTheHost) {
  EXPECT_FALSE(abele::isRunningOnDevice());
  abele::Block::useAutoId();
  const abele::Block block("anything", 3);
  const abele::NameScope scope("name");
  abele::beginBlock();
  const at::Tensor x = torch::tensor({1.0f, 2.0f, 6.0f});
  EXPECT_EQ(abele::identityLoss(x, abele::Reduction::kMean).item<float>(), 3.0f);
  EXPECT_EQ(abele::identityLoss(x, abele::Reduction::kSum).item<float>(), 9.0f);
  EXPECT_TRUE(torch::equal(abele::identityLoss(x, abele::Reduction::kNone), x));
}

TEST(Annotations, OnTheDevice) {
  bool running = false;
  auto model = abele::inferenceModel([&](at::Tensor x) {
    running = abele::isRunningOnDevice();
    abele::Block::useAutoId();
    {
      const abele::Block block("", 0);
      x = x + 1;
    }
    abele::beginBlock("", 1);
    const abele::NameScope scope("late");
    return x * 2;
  });
  const at::Tensor x = torch::randn({2, 2});
  EXPECT_TRUE(torch::equal(model(x)[0], (x + 1) * 2));
  EXPECT_TRUE(running);
}

TEST(Options, RefuseWhatIsOutOfRange) {
  abele::Options options;
  EXPECT_EQ(codeOf([&] { options.deviceIterations(0); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.Training().gradientAccumulation(0); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.replicationFactor(0); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.outputMode(abele::OutputMode::kEveryN, 0); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.maxRepeatLogs(-1); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.useIpuId(-1); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.Distributed().configureProcessId(-1, 2); }), "E0702");
  EXPECT_EQ(codeOf([&] { abele::TensorLocationSettings().minElementsForOffChip(-1); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.setExecutionStrategy(abele::PipelinedExecution{"a", "a"}); }), "E0702");
  options.Training().gradientAccumulation(2);
  EXPECT_EQ(codeOf([&] { abele::inferenceModel([](at::Tensor x) { return x; }, options); }), "E0702");
  EXPECT_EQ(options.deviceIterations(3).combinedBatchSize(5), 30);
  EXPECT_EQ(codeOf([&] { options.replicationFactor(4).inputReplicaGrouping(3); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.inputReplicaGrouping(2, abele::CommGroupType::kAll); }), "E0702");
  EXPECT_EQ(options.inputReplicaGrouping(2).combinedBatchSize(5), 60);
  EXPECT_STREQ(abele::version(), "0.1.0");
}

}  // namespace model_test
