// Information from compiled models, and the life of their devices and state.
#include <gtest/gtest.h>

#include <torch/torch.h>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace introspection_test {

using abele::test::codeOf;
using abele::test::errorOf;
namespace nn = torch::nn;

struct Training {
  explicit Training(const abele::Options& options = {}, const abele::optim::Optimizer& optimizer = abele::optim::SGD{})
      : net(seeded()),
        model(abele::trainingModel(
            net, [net = net](at::Tensor x) mutable { return abele::identityLoss(net(x).square()); }, options,
            optimizer)) {}
  static nn::Linear seeded() {
    torch::manual_seed(3);
    return nn::Linear(4, 4);
  }
  nn::Linear net;
  abele::TrainingModel model;
};

TEST(Introspection, AnchorsAreValuesInsideTheProgram) {
  const auto make = [](const abele::Options& options) {
    return abele::inferenceModel([](at::Tensor x) { return (x + 1).relu().sum(1); }, options);
  };
  const at::Tensor x = torch::randn({4, 3});
  auto plain = make(abele::Options().deviceIterations(4));
  EXPECT_EQ(codeOf([&] { plain.getTensorNames(); }), "E0705");
  plain(x);
  std::string relu;
  for (const std::string& name : plain.getTensorNames())
    if (name.find("relu") != std::string::npos || name.find("Relu") != std::string::npos) relu = name;
  ASSERT_NE(relu, "");

  abele::Options options;
  options.deviceIterations(4).anchorTensor("all", relu);
  options.anchorTensor("every other", relu, abele::OutputMode::kEveryN, 2);
  options.anchorTensor("last", relu, abele::OutputMode::kFinal);
  auto model = make(options);
  model(x);
  const at::Tensor expected = (x + 1).relu();
  EXPECT_TRUE(at::equal(model.getAnchoredTensor("all"), expected));
  EXPECT_TRUE(at::equal(model.getAnchoredTensor("every other"),
                        torch::cat({expected.slice(0, 1, 2), expected.slice(0, 3, 4)})));
  EXPECT_TRUE(at::equal(model.getAnchoredTensor("last"), expected.slice(0, 3, 4)));
  EXPECT_EQ(codeOf([&] { model.getAnchoredTensor("none of them"); }), "E0708");
}

// A module with tensors gives its name to the operators that read them, in backward too. Others keep the outer scope.
TEST(Introspection, OperationsCarryThePathOfTheirModule) {
  torch::manual_seed(1);
  nn::Sequential layers(nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 4));
  struct Net : nn::Module {};
  auto net = std::make_shared<Net>();
  net->register_module("encoder", layers.ptr());
  const auto forward = [layers](at::Tensor x) mutable {
    const abele::NameScope scope("tower");
    return abele::identityLoss(layers->forward(x).square().sum());
  };
  auto model = abele::trainingModel(net, forward, abele::Options(), abele::optim::SGD{});
  model(torch::ones({1, 4}));
  const std::vector<std::string> names = model.getTensorNames();
  const auto countOf = [&](const std::string& start) {
    return std::ranges::count_if(names, [&](const std::string& name) { return name.starts_with(start); });
  };
  EXPECT_GT(countOf("tower/encoder/0/"), 0);
  EXPECT_GT(countOf("tower/encoder/2/"), 0);
  EXPECT_GT(countOf("tower/Relu"), 0);
  EXPECT_EQ(countOf("encoder/"), 0);
  std::istringstream graph(model.graphText());
  int of_backward = 0;
  for (std::string line; std::getline(graph, line);)
    if (line.find("dir=bwd") != std::string::npos && line.find("scope=\"tower/encoder/2\"") != std::string::npos)
      ++of_backward;
  EXPECT_GT(of_backward, 0) << graph.str();
}

TEST(Introspection, TimesOfTheLastCall) {
  Training training(abele::Options().deviceIterations(2).logCycleCount(true).outputMode(abele::OutputMode::kAll));
  EXPECT_EQ(codeOf([&] { training.model.getLatency(); }), "E0705");
  training.model.compile({torch::randn({2, 4})});
  EXPECT_EQ(codeOf([&] { training.model.cycleCount(); }), "E0705");
  training.model(torch::randn({2, 4}));
  EXPECT_GT(training.model.cycleCount(), 0);
  const abele::ModelTimes times = training.model.getPerfCounters();
  ASSERT_EQ(times.input.size(), 1u);
  EXPECT_EQ(times.input[0].size(), 2u);
  ASSERT_EQ(times.output.size(), 1u);
  EXPECT_EQ(times.output[0].size(), 2u);
  const abele::Latency latency = training.model.getLatency();
  EXPECT_GT(latency.least, 0);
  EXPECT_LE(latency.least, latency.average);
  EXPECT_LE(latency.average, latency.most);
  EXPECT_LE(training.model.getComputeLatency().most, latency.most);
  EXPECT_GT(training.model.getHostIpuLatency().least, 0);
  EXPECT_GT(training.model.getIpuHostLatency().least, 0);
  Training uncounted;
  uncounted.model(torch::randn({1, 4}));
  EXPECT_EQ(codeOf([&] { uncounted.model.cycleCount(); }), "E0702");
}

TEST(Introspection, RandomStateRepeatsTheStream) {
  auto model = abele::inferenceModel([](at::Tensor x) { return torch::dropout(x, 0.5, true); });
  const at::Tensor x = torch::ones({1, 64});
  model(x);
  const at::Tensor state = model.rngState();
  const at::Tensor first = model(x)[0];
  EXPECT_FALSE(at::equal(model(x)[0], first));
  model.setRngState(state);
  EXPECT_TRUE(at::equal(model(x)[0], first));
}

TEST(Introspection, WeightsComeAndGo) {
  Training training(abele::Options().shareWeights(false));
  const at::Tensor x = torch::randn({1, 4});
  EXPECT_FALSE(training.model.copyWeightsToHostIfNeeded());
  const at::Tensor before = training.net->weight.detach().clone();
  training.model(x);
  EXPECT_TRUE(at::equal(training.net->weight, before));
  EXPECT_TRUE(training.model.copyWeightsToHostIfNeeded());
  EXPECT_FALSE(training.model.copyWeightsToHostIfNeeded());
  EXPECT_FALSE(at::equal(training.net->weight, before));

  training.model(x);
  auto state = training.model.stateDict();
  EXPECT_EQ(state.size(), 2u);
  std::map<std::string, at::Tensor> zeros;
  for (const auto& [name, tensor] : state) zeros[name] = torch::zeros_like(tensor);
  training.model.loadStateDict(zeros);
  EXPECT_EQ(training.model(x)[0].item<float>(), 0);
  zeros.erase("bias");
  EXPECT_EQ(codeOf([&] { training.model.loadStateDict(zeros); }), "E0708");
  zeros["bias"] = torch::zeros({5});
  EXPECT_EQ(codeOf([&] { training.model.loadStateDict(zeros); }), "E0708");
}

TEST(Introspection, DetachKeepsWhatWasTrained) {
  Training one, two;
  const at::Tensor x = torch::randn({1, 4});
  EXPECT_EQ(codeOf([&] { one.model.detachFromDevice(); }), "E0705");
  one.model(x);
  two.model(x);
  EXPECT_TRUE(one.model.isAttachedToDevice());
  EXPECT_EQ(codeOf([&] { one.model.attachToDevice(); }), "E0705");
  one.model.detachFromDevice();
  EXPECT_FALSE(one.model.isAttachedToDevice());
  EXPECT_EQ(codeOf([&] { one.model.detachFromDevice(); }), "E0705");
  EXPECT_TRUE(at::equal(one.model(x)[0], two.model(x)[0]));
  EXPECT_TRUE(one.model.isAttachedToDevice());
}

TEST(Introspection, AttachesWhenItIsAskedTo) {
  const at::Tensor x = torch::randn({1, 4});
  Training always, demanded(abele::Options().connectionType(abele::ConnectionType::kOnDemand));
  always.model.compile({x});
  EXPECT_TRUE(always.model.isAttachedToDevice());
  demanded.model.compile({x});
  EXPECT_FALSE(demanded.model.isAttachedToDevice());
  EXPECT_TRUE(at::equal(always.model(x)[0], demanded.model(x)[0]));
  EXPECT_TRUE(demanded.model.isAttachedToDevice());
}

TEST(Introspection, OptimizerStateContinuesElsewhere) {
  const abele::optim::Optimizer adam = abele::optim::Adam{.lr = 0.1};
  Training one({}, adam), two({}, adam);
  const at::Tensor x = torch::randn({1, 4});
  one.model(x);
  one.model(x);
  two.model.compile({x});
  two.model.loadStateDict(one.model.stateDict());
  two.model.setOptimizerState(one.model.optimizerState());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(one.model(x)[0], two.model(x)[0]));
  EXPECT_EQ(codeOf([&] { two.model.setOptimizerState({{"no such state", x}}); }), "E0706");
}

TEST(Introspection, NeverConnectedModelsCompileAndExport) {
  const auto folder = std::filesystem::temp_directory_path() / "abele_export_test";
  const auto file = (folder / "program.poptorch").string();
  const at::Tensor x = torch::randn({1, 4});
  Training offline(abele::Options().useOfflineIpuTarget());
  EXPECT_EQ(codeOf([&] { offline.model(x); }), "E0702");
  offline.model.compileAndExport(file, {x});
  EXPECT_FALSE(offline.model.isAttachedToDevice());
  EXPECT_EQ(codeOf([&] { offline.model.attachToDevice(); }), "E0702");
  Training online, loaded;
  loaded.model.loadExecutable(file);
  EXPECT_TRUE(at::equal(loaded.model(x)[0], online.model(x)[0]));
  EXPECT_EQ(codeOf([&] { loaded.model.loadExecutable(file); }), "E0705");
  std::filesystem::remove_all(folder);
}

TEST(Introspection, NamedBuffersAreUploadedAlone) {
  struct Scaled : nn::Module {
    Scaled() : scale(register_buffer("scale", torch::ones({1}))) {}
    at::Tensor scale;
  } module;
  const auto forward = [&](at::Tensor x) { return x * module.scale; };
  auto model = abele::inferenceModel(module, forward, abele::Options().updatableNamedBuffers({"scale"}));
  const at::Tensor x = torch::randn({1, 4});
  EXPECT_TRUE(at::equal(model(x)[0], x));
  module.scale.fill_(2);
  model.copyNamedBuffersToDevice();
  EXPECT_TRUE(at::equal(model(x)[0], x * 2));
  auto unlisted = abele::inferenceModel(module, forward);
  unlisted(x);
  EXPECT_EQ(codeOf([&] { unlisted.copyNamedBuffersToDevice(); }), "E0702");
  auto unknown = abele::inferenceModel(module, forward, abele::Options().updatableNamedBuffers({"scale", "shift"}));
  EXPECT_EQ(codeOf([&] { unknown(x); }), "E0702");
}

std::string lineText(int line) { return "introspection_test.cc:" + std::to_string(line); }

TEST(Introspection, ErrorsNameLinesOfTheProgram) {
  const at::Tensor x = torch::ones({4});
  int scope_line = 0, block_line = 0;
  const auto scoped = [&](at::Tensor y) {
    { const abele::NameScope other("early"); }
    scope_line = __LINE__ + 1;
    const abele::NameScope scope("late");
    return y * y.sum().item<double>();
  };
  const std::string in_scope = errorOf([&] { abele::inferenceModel(scoped)(x); });
  EXPECT_NE(in_scope.find(lineText(scope_line)), std::string::npos) << in_scope;
  const auto plain = [](at::Tensor y) {
    { const abele::NameScope done("early"); }
    return y * y.sum().item<double>();
  };
  auto model = abele::inferenceModel(plain);
  const int call_line = __LINE__ - 1;
  const std::string in_call = errorOf([&] { model(x); });
  EXPECT_NE(in_call.find(lineText(call_line)), std::string::npos) << in_call;

  const at::Tensor table = torch::ones({4, 2});
  auto lookup = abele::inferenceModel([&](at::Tensor ids) {
    block_line = __LINE__ + 1;
    abele::Block::start("lookup", 0);
    return torch::embedding(table, ids);
  });
  lookup(torch::zeros({2}, torch::kLong));
  const std::string at_run = errorOf([&] { lookup(torch::full({2}, 9, torch::kLong)); });
  EXPECT_NE(at_run.find("E0601"), std::string::npos) << at_run;
  EXPECT_NE(at_run.find(lineText(block_line)), std::string::npos) << at_run;
}

TEST(Introspection, ExplainNamesLinesOfTheProgram) {
  nn::Linear first(4, 4), second(4, 4);
  int lines[2] = {};
  const auto forward = [&](at::Tensor x) {
    lines[0] = __LINE__ + 1;
    abele::Block::start("first", 0);
    x = torch::tanh(first(x));
    lines[1] = __LINE__ + 1;
    abele::beginBlock("second", 1);
    return second(x);
  };
  auto model = abele::inferenceModel(forward, abele::Options().deviceIterations(2));
  model(torch::ones({2, 4}));
  const std::string text = model.explain();
  for (const int line : lines) EXPECT_NE(text.find(lineText(line)), std::string::npos) << text;
}

TEST(Introspection, OptionsAreFrozenAndCopied) {
  abele::Options options;
  options.deviceIterations(2);
  auto model = abele::inferenceModel([](at::Tensor x) { return x + 1; }, options);
  EXPECT_TRUE(options.isFrozen());
  EXPECT_EQ(codeOf([&] { options.deviceIterations(3); }), "E0707");
  EXPECT_EQ(model.options().device_iterations(), 2);
  EXPECT_TRUE(model.options().isFrozen());
  abele::Options loading;
  abele::DataLoader loader(loading, {torch::randn({8, 2})}, {.batch_size = 2});
  EXPECT_EQ(codeOf([&] { loading.deviceIterations(3); }), "E0707");
  EXPECT_TRUE(loader.options().isFrozen());
  std::vector<at::Tensor> batch;
  EXPECT_TRUE(loader.next(batch));
  loader.terminate();
  EXPECT_EQ(codeOf([&] { loader.next(batch); }), "E0801");
}

TEST(Introspection, ContradictingTargetsAreRefused) {
  const auto wrap = [](const abele::Options& options) {
    return codeOf([&] { abele::inferenceModel([](at::Tensor x) { return x; }, options); });
  };
  EXPECT_EQ(wrap(abele::Options().useOfflineIpuTarget().useIpuModel(true)), "E0702");
  EXPECT_EQ(wrap(abele::Options().useOfflineIpuTarget().useIpuId(1)), "E0702");
  EXPECT_EQ(wrap(abele::Options().useIpuModel(true).logCycleCount(true)), "E0702");
  abele::Options options;
  options.Distributed().configureProcessId(2, 2);
  EXPECT_EQ(wrap(options), "E0702");
  options = abele::Options();
  options.Popart().set("noSuchSetting", true);
  EXPECT_EQ(wrap(options), "E0701");
  options = abele::Options();
  options.Popart().set("virtualGraphMode", int64_t{4});
  EXPECT_EQ(wrap(options), "E0702");
  options = abele::Options();
  options.Popart().set("patterns", std::map<std::string, bool>{{"a", true}});
  EXPECT_EQ(wrap(options), "E0702");
}

TEST(Introspection, HooksRunAroundCompilation) {
  std::string seen;
  const int64_t pre = abele::registerPreCompileHook([&] { seen += "("; });
  const int64_t post = abele::registerPostCompileHook([&] { seen += ")"; });
  abele::inferenceModel([](at::Tensor x) { return x + 1; })(torch::ones({1}));
  auto failing = abele::inferenceModel([](at::Tensor) -> at::Tensor { throw std::runtime_error("no"); });
  EXPECT_THROW(failing(torch::ones({1})), std::runtime_error);
  EXPECT_EQ(seen, "()()");
  abele::removeCompileHook(pre);
  abele::removeCompileHook(post);
  abele::inferenceModel([](at::Tensor x) { return x + 1; })(torch::ones({1}));
  EXPECT_EQ(seen, "()()");
}

TEST(Introspection, Devices) {
  EXPECT_TRUE(abele::ipuHardwareIsAvailable(64));
  EXPECT_FALSE(abele::ipuHardwareIsAvailable(65));
  EXPECT_EQ(abele::ipuHardwareVersion(), 2);
  setenv("ABELE_EMULATED_DEVICES", "0", 1);
  EXPECT_FALSE(abele::ipuHardwareIsAvailable());
  EXPECT_EQ(codeOf([] { abele::ipuHardwareVersion(); }), "E0402");
  unsetenv("ABELE_EMULATED_DEVICES");
}

TEST(Strategies, StagesAndPhasesByName) {
  const abele::PipelinedExecution pipeline{abele::Stage{"a", "b"}.ipu(1), "c"};
  EXPECT_EQ(pipeline.stage("b").device_index, 1);
  EXPECT_EQ(codeOf([&] { pipeline.stage("d"); }), "E0305");
  EXPECT_EQ(codeOf([&] { pipeline.phase(0); }), "E0702");
  const abele::SerialPhasedExecution phased{{"a"}, {"b", "c"}};
  EXPECT_EQ(phased.phase(1).stages.size(), 2u);
  EXPECT_EQ(codeOf([&] { phased.phase(2); }), "E0702");
}

// Optimizers ---------------------------------------------------------------------------------------------------------
TEST(OptimizerAttributes, ConstantsStayAsCompiled) {
  abele::optim::Optimizer optimizer = abele::optim::SGD{.lr = 0.5, .momentum = 0.5};
  EXPECT_FALSE(optimizer.variable_attrs.isConstant("lr"));
  optimizer.variable_attrs.markAsConstant("momentum");
  optimizer.variable_attrs.markAsConstant("loss_scaling");
  EXPECT_EQ(codeOf([&] { optimizer.variable_attrs.markAsConstant("speed"); }), "E0706");
  Training training({}, optimizer);
  training.model(torch::randn({1, 4}));
  training.model.setOptimizer(abele::optim::SGD{.lr = 0.25, .momentum = 0.5});
  // The marks are those of the optimizer that the program was compiled with.
  EXPECT_EQ(codeOf([&] { training.model.setOptimizer(abele::optim::SGD{.lr = 0.25, .momentum = 0.25}); }), "E0706");
  Training other({}, optimizer);
  other.model(torch::randn({1, 4}));
  EXPECT_EQ(codeOf([&] { other.model.setOptimizer(abele::optim::SGD{.lr = 0.5, .momentum = 0.25}); }), "E0706");
  abele::optim::Optimizer scaled = abele::optim::SGD{.lr = 0.5, .momentum = 0.5};
  scaled.loss_scaling = 2;
  EXPECT_EQ(codeOf([&] { other.model.setOptimizer(scaled); }), "E0706");
}

TEST(OptimizerAttributes, VariableMomentumMayStartAtZero) {
  const at::Tensor x = torch::randn({1, 4});
  abele::optim::Optimizer fixed = abele::optim::SGD{.lr = 0.1};
  Training refused({}, fixed);
  refused.model(x);
  EXPECT_EQ(codeOf([&] { refused.model.setOptimizer(abele::optim::SGD{.lr = 0.1, .momentum = 0.9}); }), "E0706");
  fixed.variable_attrs.markAsVariable("momentum");
  Training training({}, fixed);
  training.model(x);
  abele::optim::Optimizer moving = abele::optim::SGD{.lr = 0.1, .momentum = 0.9};
  moving.variable_attrs.markAsVariable("momentum");
  training.model.setOptimizer(moving);

  nn::Linear eager = Training::seeded();
  torch::optim::SGD native(eager->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 3; ++step) {
    eager->zero_grad();
    const at::Tensor loss = eager(x).square().mean();
    loss.backward();
    if (step > 0) {
      EXPECT_TRUE(at::equal(training.model(x)[0], loss.detach())) << step;
    }
    native.step();
    static_cast<torch::optim::SGDOptions&>(native.param_groups()[0].options()).momentum(0.9);
  }
}

TEST(OptimizerAttributes, StateTypes) {
  abele::optim::Optimizer optimizer = abele::optim::Adam{};
  optimizer.accum_type = abele::FloatType::kHalf;
  optimizer.first_order_momentum_accum_type = abele::FloatType::kHalf;
  Training training({}, optimizer);
  training.model(torch::randn({1, 4}));
  for (const auto& [name, tensor] : training.model.optimizerState()) {
    if (name.starts_with("exp_avg/")) {
      EXPECT_EQ(tensor.scalar_type(), at::kHalf) << name;
    }
    if (name.starts_with("exp_avg_sq/")) {
      EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    }
  }
  optimizer.accum_type = abele::FloatType::kBFloat16;
  EXPECT_EQ(codeOf([&] { Training refused({}, optimizer); }), "E0706");
}

}  // namespace introspection_test
