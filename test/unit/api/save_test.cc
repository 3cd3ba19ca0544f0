// Saved models of the public C++ API: they continue bit for bit, without forward and without the module.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace save_test {

using abele::test::codeOf;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    first = register_module("first", nn::Linear(4, 8));
    norm = register_module("norm", nn::BatchNorm1d(8));
    second = register_module("second", nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    abele::Block::start("first", 0);
    const at::Tensor h = torch::dropout(torch::relu(norm(first(x))), 0.2, is_training());
    abele::Block::start("second", 1);
    return second(h);
  }
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

abele::Options options() {
  abele::Options options;
  options.threadsPerDevice(1).randomSeed(5).Training().gradientAccumulation(2);
  return options;
}

abele::TrainingModel train(Net net) {
  return abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(net(x), y); }, options(),
      abele::optim::Adam{.lr = 0.01});
}

struct Batch {
  Batch() {
    torch::manual_seed(2);
    x = torch::randn({8, 4});
    y = torch::randn({8, 2});
  }
  at::Tensor x, y;
};

struct File {
  explicit File(const std::string& name)
      : path(std::filesystem::path(testing::TempDir()) / "abele_save_test" / (name + ".poptorch")) {}
  ~File() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

TEST(Save, TrainingGoesOnWithoutForwardAndModule) {
  const Batch batch;
  const File file("training");
  Net net;
  abele::TrainingModel model = train(net);
  EXPECT_EQ(codeOf([&] { model.save(file.path); }), "E0705");
  for (int i = 0; i < 3; ++i) model(batch.x, batch.y);
  model.save(file.path);
  abele::TrainingModel loaded = abele::loadTrainingModel(file.path);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(torch::equal(model(batch.x, batch.y)[0], loaded(batch.x, batch.y)[0])) << i;
  loaded.destroy();
  EXPECT_EQ(codeOf([&] { loaded(batch.x, batch.y); }), "E0705");
}

TEST(Save, ALoadedProgramTakesNewNumbersOfItsOptimizer) {
  const Batch batch;
  const File file("optimizer");
  Net net, other;
  const auto make = [](double lr) {
    return abele::optim::Optimizer({abele::optim::Adam{.lr = lr, .parameters = {"first"}}, abele::optim::Adam{}});
  };
  abele::TrainingModel model = abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(net(x), y); }, options(), make(0.1));
  model(batch.x, batch.y);
  model.save(file.path);
  abele::TrainingModel alone = abele::loadTrainingModel(file.path);
  abele::TrainingModel with_module = abele::loadTrainingModel(file.path, *other);
  abele::optim::Optimizer changed = alone.optimizer();
  auto& groups = std::get<std::vector<abele::optim::Adam>>(changed.groups);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].lr, 0.1);
  EXPECT_EQ(groups[0].parameters, (std::vector<std::string>{"first.bias", "first.weight"}));
  groups[0].lr = 0.5;
  alone.setOptimizer(changed);
  model.setOptimizer(make(0.5));
  with_module.setOptimizer(make(0.5));
  for (int i = 0; i < 3; ++i) {
    const at::Tensor expected = model(batch.x, batch.y)[0];
    EXPECT_TRUE(torch::equal(expected, alone(batch.x, batch.y)[0])) << i;
    EXPECT_TRUE(torch::equal(expected, with_module(batch.x, batch.y)[0])) << i;
  }
  EXPECT_EQ(codeOf([&] { alone.setOptimizer(abele::optim::SGD{}); }), "E0706");
  EXPECT_EQ(codeOf([&] { alone.setOptimizer(abele::optim::Adam{}); }), "E0706");
}

TEST(Save, AModuleTakesTheWeightsOver) {
  const Batch batch;
  const File file("module");
  Net net, other;
  abele::TrainingModel model = train(net);
  model(batch.x, batch.y);
  model.save(file.path);
  {
    torch::NoGradGuard no_grad;
    for (at::Tensor& p : other->parameters()) p.zero_();
  }
  abele::TrainingModel loaded = abele::loadTrainingModel(file.path, *other);
  model(batch.x, batch.y);
  loaded(batch.x, batch.y);
  model.copyWeightsToHost();
  loaded.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(net->first->weight, other->first->weight));
  EXPECT_TRUE(torch::equal(net->norm->running_mean, other->norm->running_mean));
  nn::Linear wrong(3, 3);
  EXPECT_EQ(codeOf([&] { abele::loadTrainingModel(file.path, *wrong); }), "E0712");
  EXPECT_EQ(codeOf([&] { abele::loadInferenceModel(file.path); }), "E0712");
}

TEST(Save, InferenceServes) {
  const Batch batch;
  const File file("inference");
  at::Tensor expected;
  {
    Net net;
    net->eval();
    abele::InferenceModel model = abele::inferenceModel(
        net, [net](at::Tensor x) mutable { return net(x); }, abele::Options().deviceIterations(4));
    expected = model(batch.x)[0];
    model.save(file.path);
  }
  abele::InferenceModel loaded = abele::loadInferenceModel(file.path);
  EXPECT_TRUE(torch::equal(loaded(batch.x)[0], expected));
  abele::InferenceModel last =
      abele::loadInferenceModel(file.path, abele::Options().outputMode(abele::OutputMode::kFinal));
  EXPECT_TRUE(torch::equal(last(batch.x)[0], expected.narrow(0, 6, 2)));
}

TEST(Save, AFileWithoutTheModelNeedsOne) {
  const Batch batch;
  const File file("program");
  Net net, other, expected;
  abele::TrainingModel model = train(net);
  for (int i = 0; i < 2; ++i) model(batch.x, batch.y);
  model.save(file.path, {.export_model = false, .save_rng_state = false});
  EXPECT_EQ(codeOf([&] { abele::loadTrainingModel(file.path); }), "E0712");
  // Weights, optimizer state and random stream are those of a new model.
  abele::TrainingModel loaded = abele::loadTrainingModel(file.path, *other, options()), fresh = train(expected);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(fresh(batch.x, batch.y)[0], loaded(batch.x, batch.y)[0])) << i;
}

TEST(Save, KeepsTheRandomStateOnlyWhenAskedFor) {
  const Batch batch;
  const File with("with"), without("without");
  Net net, first, second;
  abele::TrainingModel model = train(net), fresh = train(first);
  const auto compiled = [&](abele::TrainingModel& made) { made.compile(batch.x, batch.y); };
  compiled(model);
  compiled(fresh);
  const at::Tensor begin = fresh.rngState();
  model(batch.x, batch.y);
  model.save(with.path, {.export_model = false});
  model.save(without.path, {.export_model = false, .save_rng_state = false});
  EXPECT_FALSE(torch::equal(model.rngState(), begin));
  EXPECT_TRUE(torch::equal(abele::loadTrainingModel(with.path, *second, options()).rngState(), model.rngState()));
  EXPECT_TRUE(torch::equal(abele::loadTrainingModel(without.path, *second, options()).rngState(), begin));
}

TEST(Save, AFolderGetsAFileOfTheDefaultName) {
  const Batch batch;
  const File file("model");
  std::filesystem::create_directories(file.path.parent_path());
  Net net;
  abele::TrainingModel model = train(net);
  model.compile(batch.x, batch.y);
  testing::internal::CaptureStderr();
  model.save(file.path.parent_path());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("model.poptorch"), std::string::npos);
  EXPECT_TRUE(abele::loadTrainingModel(file.path).isCompiled());
  EXPECT_EQ(codeOf([&] { model.save(file.path / "below"); }), "E0712");  // that is a file
}

// The file of the inference model has the weights that training has not copied back yet.
TEST(Save, InferenceHasTheWeightsOfItsTrainer) {
  const Batch batch;
  const File file("trainer");
  Net net;
  abele::InferenceModel inference = abele::inferenceModel(net, [net](at::Tensor x) mutable {
    net->eval();
    const at::Tensor result = net(x);
    net->train();
    return result;
  });
  inference(batch.x);
  abele::TrainingModel training = train(net);
  training(batch.x, batch.y);
  inference.save(file.path);
  abele::InferenceModel loaded = abele::loadInferenceModel(file.path);
  EXPECT_TRUE(torch::equal(loaded(batch.x)[0], inference(batch.x)[0]));
}

// How often a program runs, and on how many replicas, the file says.
TEST(Save, ReplicasComeFromTheFile) {
  const File file("replicas");
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({8, 4});
  nn::Linear net(4, 3);
  const auto model = [&](const abele::Options& chosen) {
    return abele::inferenceModel(net, [net](at::Tensor in) mutable { return net(in); }, chosen);
  };
  const auto types = {abele::CommGroupType::kConsecutive, abele::CommGroupType::kOrthogonal};
  for (const abele::CommGroupType type : types) {
    abele::Options chosen;
    chosen.threadsPerDevice(1).deviceIterations(2).replicationFactor(4).inputReplicaGrouping(2, type);
    abele::InferenceModel saved = model(chosen);
    const at::Tensor expected = saved(x)[0];
    saved.save(file.path);
    EXPECT_TRUE(torch::equal(abele::loadInferenceModel(file.path)(x)[0], expected));
  }
}

/// Sharded, two iterations, all results.
abele::InferenceModel sharded(Net net) {
  abele::Options options;
  options.threadsPerDevice(1).deviceIterations(2).outputMode(abele::OutputMode::kAll).logDir("logs");
  options.setExecutionStrategy(abele::ShardedExecution());
  net->eval();
  return abele::inferenceModel(net, [net](at::Tensor x) mutable { return net(x); }, options);
}

struct SavedSharded {
  explicit SavedSharded(const std::string& name) : file(name) { model.save(file.path); }
  Batch batch;
  File file;
  Net net, other;
  abele::InferenceModel model = sharded(net);
  at::Tensor expected = model(batch.x)[0];
};

TEST(Save, OptionsComeFromTheFile) {
  SavedSharded saved("options");
  auto& [batch, file, net, other, model, expected] = saved;
  EXPECT_EQ(abele::savedOptions(file.path).toJson(), model.options().toJson());
  testing::internal::CaptureStderr();
  abele::InferenceModel alone = abele::loadInferenceModel(file.path);
  abele::InferenceModel with_module = abele::loadInferenceModel(file.path, *other);
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("ignored"), std::string::npos);
  EXPECT_EQ(alone.options().toJson(), model.options().toJson());
  EXPECT_TRUE(torch::equal(alone(batch.x)[0], expected));
  EXPECT_TRUE(torch::equal(with_module(batch.x)[0], expected));
  EXPECT_EQ(codeOf([&] { const_cast<abele::Options&>(alone.options()).deviceIterations(3); }), "E0707");
}

// The compiled options stay. A warning goes to a user who asks for others, and only to that user.
TEST(Save, OptionsOfTheProgramAreIgnoredAtALoadAndNamed) {
  SavedSharded saved("ignored");
  auto& [batch, file, net, other, model, expected] = saved;
  abele::Options chosen;
  chosen.deviceIterations(7).fusion("off").outputMode(abele::OutputMode::kFinal);
  testing::internal::CaptureStderr();
  abele::InferenceModel loaded = abele::loadInferenceModel(file.path, chosen);
  const std::string warning = testing::internal::GetCapturedStderr();
  for (const char* name : {"device_iterations", "fusion_level"})
    EXPECT_NE(warning.find(name), std::string::npos) << warning;
  for (const char* name : {"output_mode", "strategy", "log_dir"})
    EXPECT_EQ(warning.find(name), std::string::npos) << warning;
  EXPECT_EQ(loaded.options().deviceIterations(), 2);
  EXPECT_EQ(loaded.options().log_dir(), ".");
  EXPECT_TRUE(torch::equal(loaded(batch.x)[0], expected.narrow(0, 4, 4)));
  EXPECT_EQ(codeOf([&] { chosen.deviceIterations(1); }), "E0707");
}

TEST(Save, LoadExecutableTakesTheOptionsOfTheProgram) {
  SavedSharded saved("executable");
  auto& [batch, file, net, other, model, expected] = saved;
  other->eval();
  abele::InferenceModel wrapped = abele::inferenceModel(
      other, [other](at::Tensor x) mutable { return other(x); },
      abele::Options().threadsPerDevice(1).deviceIterations(4));
  testing::internal::CaptureStderr();
  wrapped.loadExecutable(file.path);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("device_iterations"), std::string::npos);
  EXPECT_EQ(wrapped.options().deviceIterations(), 2);
  EXPECT_TRUE(torch::equal(wrapped(batch.x)[0], expected));
  wrapped.destroy();
  EXPECT_TRUE(torch::equal(wrapped(batch.x)[0], expected));  // compiled again, with the same options
}

/// The message that it throws.
std::string refusal(const auto& call) {
  try {
    call();
  } catch (const abele::Error& error) {
    return error.what();
  }
  return "";
}

// destroy() helps where there is a forward to compile again.
TEST(Save, OtherInputsOfALoadedProgramNeedItsModule) {
  SavedSharded saved("remedies");
  auto& [batch, file, net, other, model, expected] = saved;
  abele::InferenceModel alone = abele::loadInferenceModel(file.path);
  const std::string shape = refusal([&] { alone(batch.x.narrow(1, 0, 2)); });
  const std::string structure = refusal([&] { alone(batch.x, 3); });
  for (const std::string& text : {shape, structure}) {
    EXPECT_TRUE(text.starts_with("E0704")) << text;
    EXPECT_EQ(text.find("destroy()"), std::string::npos) << text;
    EXPECT_NE(text.find("module"), std::string::npos) << text;
  }
  other->eval();
  const auto forward = [net = other](at::Tensor x) mutable { return net(x); };
  abele::InferenceModel wrapped = abele::inferenceModel(other, forward, abele::Options().threadsPerDevice(1));
  wrapped.loadExecutable(file.path);
  EXPECT_NE(refusal([&] { wrapped(batch.x.narrow(1, 0, 2)); }).find("destroy()"), std::string::npos);
}

TEST(Save, WhatWasCompiledWithoutDevicesRunsOnThoseOfThisMachine) {
  const Batch batch;
  const File file("offline");
  Net net;
  net->eval();
  const auto forward = [net](at::Tensor x) mutable { return net(x); };
  abele::InferenceModel offline = abele::inferenceModel(net, forward, abele::Options().useOfflineIpuTarget());
  offline.compileAndExport(file.path, batch.x);
  EXPECT_TRUE(torch::equal(abele::loadInferenceModel(file.path)(batch.x)[0], net(batch.x)));
}

/// A net whose layers are wide enough to be divided, and its batches.
struct Divided {
  Divided() {
    torch::manual_seed(3);
    net = nn::Sequential(nn::Linear(64, 256), nn::GELU(), nn::Linear(256, 64));
    x = torch::randn({64, 64});
    y = torch::randn({64, 64});
  }
  abele::TrainingModel train() {
    abele::Options options;
    options.tensorParallel(2).threadsPerDevice(1).Training().gradientAccumulation(2);
    return abele::trainingModel(
        net, [net = net](at::Tensor a, at::Tensor b) mutable { return torch::mse_loss(net->forward(a), b); }, options,
        abele::optim::Adam{.lr = 0.01});
  }
  nn::Sequential net{nullptr};
  at::Tensor x, y;
};

TEST(Save, ABlockOverSeveralDevicesGoesOn) {
  Divided divided;
  const File file("divided");
  abele::TrainingModel model = divided.train();
  for (int i = 0; i < 2; ++i) model(divided.x, divided.y);
  model.save(file.path);
  abele::TrainingModel loaded = abele::loadTrainingModel(file.path);
  EXPECT_NE(loaded.report().find("/1.1"), std::string::npos) << loaded.report();
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(torch::equal(model(divided.x, divided.y)[0], loaded(divided.x, divided.y)[0])) << i;
}

TEST(Save, ABlockOverSeveralDevicesNeedsAMachineWhoseTrialsAreTheSame) {
  Divided divided;
  const File file("divided_elsewhere");
  abele::TrainingModel model = divided.train();
  model(divided.x, divided.y);
  model.save(file.path);
  const abele::Options threads = abele::savedOptions(file.path).threadsPerDevice(2);
  const std::string refused = abele::test::errorOf([&] { abele::loadTrainingModel(file.path, threads); });
  for (const char* part : {"E0712", "2 threads a device", "1 thread a device"})
    EXPECT_NE(refused.find(part), std::string::npos) << part << "\n" << refused;
}

TEST(Save, AModuleKeepsWhatItHadWhereALoadFails) {
  const Batch batch;
  const File file("unchanged"), large("large");
  Net net, other;
  abele::TrainingModel model = train(net);
  model(batch.x, batch.y);
  model.save(file.path);
  other->second = other->replace_module("second", nn::Linear(8, 3));
  const auto sum = [&] {
    double total = 0;
    for (const at::Tensor& tensor : other->parameters()) total += tensor.sum().item<double>();
    return total;
  };
  const double before = sum();
  EXPECT_EQ(codeOf([&] { abele::loadTrainingModel(file.path, *other); }), "E0712");
  EXPECT_EQ(sum(), before);
  abele::TrainingModel wrapped = train(other);
  EXPECT_EQ(codeOf([&] { wrapped.loadExecutable(file.path); }), "E0712");
  EXPECT_EQ(sum(), before);
  EXPECT_EQ(wrapped.options().toJson(), options().toJson());
  EXPECT_FALSE(wrapped.isCompiled());
}

// A program without weights, of another module: its tensors are not there.
TEST(Save, AProgramOfAnotherModuleIsRefused) {
  const Batch batch;
  const File file("foreign");
  Net net;
  nn::Linear other(4, 2);
  abele::TrainingModel model = train(net);
  model.compile(batch.x, batch.y);
  model.save(file.path, {.export_model = false});
  EXPECT_EQ(codeOf([&] { abele::loadTrainingModel(file.path, *other); }), "E0712");
  Net wider;
  wider->second = wider->replace_module("second", nn::Linear(8, 5));
  EXPECT_EQ(codeOf([&] { abele::loadTrainingModel(file.path, *wider); }), "E0712");
}

TEST(Save, RefusesFilesThatAreNone) {
  const File file("damaged");
  EXPECT_EQ(codeOf([&] { abele::loadInferenceModel(file.path); }), "E0712");
  const Batch batch;
  Net net;
  abele::TrainingModel model = train(net);
  model(batch.x, batch.y);
  model.save(file.path);
  const auto refuses = [&] {
    const std::string text = abele::test::errorOf([&] { abele::loadTrainingModel(file.path); });
    EXPECT_NE(text.find("E0501"), std::string::npos) << text;
    EXPECT_NE(text.find(file.path), std::string::npos) << text;
    EXPECT_EQ(text, abele::test::errorOf([&] { abele::savedOptions(file.path); }));
    return text;
  };
  std::ofstream(file.path, std::ios::binary | std::ios::in | std::ios::out).seekp(100).put('?').put('!');
  refuses();
  std::filesystem::resize_file(file.path, 50);
  refuses();
  std::ofstream(file.path, std::ios::binary | std::ios::in | std::ios::out).put('\0');
  EXPECT_NE(refuses().find("a file that begins with"), std::string::npos);  // a zero does not end the text
}

}  // namespace save_test
