// Refused programs and calls: the code, the remedy, and a session and model that work afterwards.
#include <gtest/gtest.h>

#include "base/error.h"
#include "networks.h"

namespace abele::test {
namespace {

constexpr int64_t kBatchRows = 4;

compile::ProgramOptions training(int64_t accumulation = 1) {
  compile::ProgramOptions options;
  options.training = true;
  options.gradient_accumulation = accumulation;
  options.threads_per_device = 1;
  return options;
}

/// Runs fn, which must throw an Error of this code; returns its text.
template <class Fn>
std::string textOf(ErrorCode code, Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_STREQ(errorCodeText(error.code()), errorCodeText(code)) << error.what();
    EXPECT_NE(error.message().remedy, "") << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing thrown, expected " << errorCodeText(code);
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A session of the two-stage MLP, and the check that it still trains as eager does.
struct Trained {
  explicit Trained(compile::ProgramOptions options)
      : parts(options.gradient_accumulation), session(std::move(options)) {
    torch::manual_seed(3);
    data = network->sample(kBatchRows * parts);
  }
  void compile() { session.compile(view.program, data, specFor(*network, optim::SGD{.lr = 0.1})); }
  void expectTrains() {
    const std::shared_ptr<Network> eager_network = makeNetwork("mlp", 2);
    EagerTrainer eager(eager_network, {.accumulation = parts});
    const Tensors found = session.run(data);
    EXPECT_TRUE(torch::equal(found[0].reshape(-1)[0], eager.step(data)[0][0]));
    session.copyWeightsToHost();
    EXPECT_EQ(firstDifference(*network, *eager_network), "");
  }

  std::shared_ptr<Network> network = makeNetwork("mlp", 2);
  ModelView view{*network};
  int64_t parts;
  Tensors data;
  session::Session session;
};

TEST(Errors, OptionsOutOfRange) {
  compile::ProgramOptions options;
  options.device_iterations = 0;
  textOf(ErrorCode::E0702, [&] { session::Session session(options); });
  options = {};
  options.gradient_accumulation = 4;  // invalid for inference
  EXPECT_TRUE(has(textOf(ErrorCode::E0702, [&] { session::Session session(options); }), "deviceIterations(4)"));
}

TEST(Errors, BatchesThatCannotBeSplit) {
  Trained t(training(3));
  const auto compileWith = [&](Tensors inputs) {
    return textOf(ErrorCode::E0703, [&] { t.session.compile(t.view.program, inputs, {}); });
  };
  const std::string text = compileWith({torch::randn({10, 6}), torch::randn({12, 3})});
  EXPECT_TRUE(has(text, "input 0")) << text;
  EXPECT_TRUE(has(text, "f32[10,6]")) << text;
  EXPECT_TRUE(has(text, "deviceIterations 1 * gradientAccumulation 3")) << text;
  EXPECT_TRUE(has(text, "9 or 12 rows")) << text;
  EXPECT_TRUE(has(compileWith({torch::randn({12, 6}), torch::randn({0, 3})}), "no elements"));
  EXPECT_TRUE(has(compileWith({torch::randn({12, 6}), torch::tensor(1.0)}), "input 1"));
  EXPECT_FALSE(t.session.isCompiled());
  t.compile();
  t.expectTrains();
}

TEST(Errors, InputsThatDifferFromTheCompiledOnes) {
  Trained t(training(2));
  t.compile();
  std::string text = textOf(ErrorCode::E0704, [&] { t.session.run({torch::randn({16, 6}), t.data[1]}); });
  EXPECT_TRUE(has(text, "tensor argument 0") && has(text, "f32[16,6]") && has(text, "f32[8,6]")) << text;
  EXPECT_TRUE(has(text, "destroy()")) << text;
  text = textOf(ErrorCode::E0704, [&] { t.session.run({t.data[0], t.data[1].to(at::kDouble)}); });
  EXPECT_TRUE(has(text, "tensor argument 1") && has(text, "f64[8,3]")) << text;
  textOf(ErrorCode::E0704, [&] { t.session.run({t.data[0]}); });
  EXPECT_TRUE(has(textOf(ErrorCode::E0708, [&] { t.session.run({t.data[0], t.data[1].to(at::kMeta)}); }), "input 1"));
  t.expectTrains();
}

TEST(Errors, CallsBeforeCompile) {
  Trained t(training());
  EXPECT_TRUE(has(textOf(ErrorCode::E0705, [&] { t.session.run(t.data); }), "run()"));
  textOf(ErrorCode::E0705, [&] { t.session.copyWeightsToHost(); });
  textOf(ErrorCode::E0705, [&] { t.session.copyWeightsToDevice(); });
  textOf(ErrorCode::E0705, [&] { t.session.setOptimizer({}); });
  textOf(ErrorCode::E0705, [&] { t.session.optimizerState(); });
  textOf(ErrorCode::E0705, [&] { t.session.rngState(); });
  textOf(ErrorCode::E0705, [&] { t.session.graph(); });
  t.compile();
  t.expectTrains();
}

TEST(Errors, ForwardThatThrowsPassesUnchanged) {
  Trained t(training());
  session::Session::Program broken = t.view.program;
  int calls = 0;
  broken.forward = [&](Tensors inputs) -> Tensors {
    ++calls;
    t.network->run(inputs);
    beginBlock("left open", {1});
    throw std::runtime_error("out of ideas");
  };
  try {
    t.session.compile(broken, t.data, specFor(*t.network, optim::SGD{}));
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of ideas");
  }
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(isRunningOnDevice());
  EXPECT_FALSE(t.session.isCompiled());
  t.compile();
  t.expectTrains();
}

TEST(Errors, CompileThatFailsKeepsTheCompiledProgram) {
  Trained t(training());
  t.compile();
  session::Session::Program broken = t.view.program;
  broken.forward = [](Tensors) -> Tensors { throw std::logic_error("no"); };
  EXPECT_THROW(t.session.compile(broken, t.data, {}), std::logic_error);
  EXPECT_TRUE(t.session.isCompiled());
  t.expectTrains();
}

TEST(Errors, NoLoss) {
  Trained t(training());
  session::Session::Program broken = t.view.program;
  broken.forward = [](Tensors inputs) { return Tensors{inputs[0] * 2}; };
  textOf(ErrorCode::E0102, [&] { t.session.compile(broken, t.data, {}); });
  t.compile();
  t.expectTrains();
}

TEST(Errors, PipelineMinimum) {
  compile::ProgramOptions options = training(2);
  options.enforce_pipeline_minimum = true;
  Trained t(options);
  const std::string text = textOf(ErrorCode::E0401, [&] { t.compile(); });
  EXPECT_TRUE(has(text, "gradientAccumulation(3)")) << text;
  EXPECT_TRUE(has(text, "Options::enforcePipelineMinimum(false)")) << text;
  options.gradient_accumulation = 3;
  Trained enough(options);
  enough.compile();
  enough.expectTrains();

  options = {};
  options.enforce_pipeline_minimum = true;
  session::Session inference(options);
  EXPECT_TRUE(
      has(textOf(ErrorCode::E0401, [&] { inference.compile(t.view.program, t.data, {}); }), "deviceIterations(2)"));
  options.strategy = compile::Strategy::kSharded;
  session::Session sharded(options);
  sharded.compile(t.view.program, t.data, {});
}

TEST(Errors, MoreDevicesThanExist) {
  compile::ProgramOptions options = training();
  options.num_devices = 1;
  Trained t(options);
  textOf(ErrorCode::E0402, [&] { t.compile(); });
}

TEST(Errors, OptimizerThatDiffersFromTheCompiledOne) {
  Trained t(training());
  t.compile();
  const auto refused = [&](const optim::Optimizer& optimizer) {
    return textOf(ErrorCode::E0706, [&] { t.session.setOptimizer(specFor(*t.network, optimizer)); });
  };
  const std::string text = refused(optim::Adam{});
  EXPECT_TRUE(has(text, "Adam") && has(text, "SGD")) << text;
  EXPECT_TRUE(has(refused(optim::SGD{.momentum = 0.9}), "momentum true"));
  EXPECT_TRUE(has(refused(optim::SGD{.parameters = {"layer0"}}), "layer1.bias"));
  EXPECT_TRUE(has(refused(std::vector<optim::SGD>{{.parameters = {"layer0"}}, {}}), "2 groups"));
  t.expectTrains();
}

TEST(Errors, InterruptedStepLeavesTheWeights) {
  // Enough work that the runtime, which asks about every 50 ms, asks at least once during the step.
  const auto heavy = [](Tensors in) {
    at::Tensor h = in[0];
    for (int i = 0; i < 40; ++i) h = torch::matmul(h, in[0]).tanh();
    return Tensors{h};
  };
  const at::Tensor x = torch::randn({8 * 400, 400});
  compile::ProgramOptions options;
  options.device_iterations = 8;
  options.threads_per_device = 1;
  session::Session session(options);
  session.compile({.forward = heavy}, {x}, {});
  int asked = 0;
  textOf(ErrorCode::E0602, [&] { session.run({x}, [&] { return ++asked > 0; }); });
  EXPECT_GT(asked, 0);
  const Tensors found = session.run({x});
  at::set_num_threads(1);
  EXPECT_TRUE(torch::equal(found[0].narrow(0, 0, 400), heavy(microBatch({x}, 0, 8))[0]));
}

TEST(Errors, KernelThatThrowsLeavesWeightsAndBuffers) {
  // Only the kernel can find an index out of range.
  Trained t(training());
  at::Tensor table = torch::randn({4, 6});
  session::Session::Program program = t.view.program;
  program.forward = [&](Tensors in) { return t.network->run({table.index_select(0, in[0]), in[1]}); };
  const at::Tensor good = torch::tensor({0, 1, 2, 3}, at::kLong);
  t.session.compile(program, {good, t.data[1]}, specFor(*t.network, optim::SGD{.lr = 0.1}));
  const Tensors expected = t.session.run({good, t.data[1]});
  t.session.copyWeightsToHost();
  const std::shared_ptr<Network> before = makeNetwork("mlp", 2);
  {
    torch::NoGradGuard no_grad;
    for (auto& p : before->named_parameters()) p.value().copy_(t.network->named_parameters()[p.key()]);
  }
  std::string text = textOf(ErrorCode::E0601, [&] { t.session.run({good + 4, t.data[1]}); });
  EXPECT_TRUE(has(text, "stage 0")) << text;
  t.session.copyWeightsToHost();
  EXPECT_EQ(firstDifference(*t.network, *before), "");
  EXPECT_EQ(t.session.run({good, t.data[1]}).size(), expected.size());
}

TEST(Errors, KernelThatThrowsAfterAnUpdateLeavesTheWeightsOfTheLastStep) {
  compile::ProgramOptions options = training();
  options.device_iterations = 2;
  Trained t(options);
  at::Tensor table = torch::randn({4, 6});
  session::Session::Program program = t.view.program;
  program.forward = [&](Tensors in) { return t.network->run({table.index_select(0, in[0]), in[1]}); };
  const at::Tensor good = torch::tensor({0, 1, 2, 3, 0, 1, 2, 3}, at::kLong);
  const at::Tensor target = torch::cat({t.data[1], t.data[1]});
  t.session.compile(program, {good, target}, specFor(*t.network, optim::Adam{.lr = 0.1}));
  t.session.run({good, target});
  t.session.copyWeightsToHost();
  const std::shared_ptr<Network> before = makeNetwork("mlp", 2);
  {
    torch::NoGradGuard no_grad;
    for (auto& p : before->named_parameters()) p.value().copy_(t.network->named_parameters()[p.key()]);
  }
  const auto state = t.session.optimizerState();
  const at::Tensor bad_later = torch::tensor({0, 1, 2, 3, 0, 1, 2, 7}, at::kLong);  // the first update runs
  textOf(ErrorCode::E0601, [&] { t.session.run({bad_later, target}); });
  t.session.copyWeightsToHost();
  EXPECT_EQ(firstDifference(*t.network, *before), "");
  for (const auto& [name, tensor] : t.session.optimizerState())
    EXPECT_TRUE(torch::equal(tensor, state.at(name))) << name;
}

}  // namespace
}  // namespace abele::test
