// Weights in safetensors files, and modules on the meta device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace abele::test::weights_test {

struct Folder {
  Folder() {
    std::string name = testing::TempDir() + "/abele_weights_XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x)))); }
  torch::nn::Linear first = nullptr, second = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};

/// LibTorch's own layers are made on the host. This layer makes its tensors where the caller says.
struct Layer : torch::nn::Module {
  explicit Layer(torch::Device device) {
    weight = register_parameter("weight", torch::randn({3, 4}, device));
    scale = register_buffer("scale", torch::ones({3}, device));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight) * scale; }
  at::Tensor weight, scale;
};

std::shared_ptr<Net> made(uint64_t seed) {
  torch::manual_seed(seed);
  return std::make_shared<Net>();
}

template <class Module>
TrainingModel train(const std::shared_ptr<Module>& net) {
  auto forward = [net = net.get()](const at::Tensor& x, const at::Tensor& target) {
    return torch::cross_entropy_loss(net->forward(x), target);
  };
  return trainingModel(net, forward, {}, optim::Optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9}));
}

at::Tensor stepOf(TrainingModel& model) {
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({6, 4});
  return model(x, torch::randint(3, {6}))[0];
}

TEST(Weights, AreLoadedAndSaved) {
  Folder folder;
  const auto one = made(1), other = made(2);
  TrainingModel first = train(one);
  stepOf(first);
  saveWeights(folder.path, first);
  TrainingModel second = train(other);
  stepOf(second);
  loadWeights(folder.path, second);
  second.copyWeightsToHost();
  first.copyWeightsToHost();
  for (const auto& item : one->named_parameters())
    EXPECT_TRUE(at::equal(item.value(), other->named_parameters()[item.key()])) << item.key();
  std::ofstream(folder.path + "/model.safetensors.index.json") << "{}";
  EXPECT_EQ(codeOf([&] { loadWeights(folder.path, second); }), "E0712");
  EXPECT_EQ(codeOf([&] { loadWeights(folder.path + "/model.safetensors.index.json", second); }), "E0501");
}

TEST(Weights, OfAModuleOnTheMetaDevice) {
  Folder folder;
  const auto one = std::make_shared<Layer>(torch::kCPU), other = std::make_shared<Layer>(torch::kMeta);
  TrainingModel first = train(one);
  saveWeights(folder.path, first);
  TrainingModel second = train(other);
  EXPECT_EQ(codeOf([&] { stepOf(second); }), "E0708");
  loadWeights(folder.path, second);
  const at::Tensor loss = stepOf(second);
  EXPECT_TRUE(at::equal(loss, stepOf(first)));
  EXPECT_TRUE(other->weight.is_cpu());
}

/// Draws as torch's constructors do, with a layer of our own between them.
struct Drawn : torch::nn::Module {
  Drawn() {
    first = register_module("first", torch::nn::Linear(4, 8));
    own = register_module("own", std::make_shared<Own>());
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x) * own->scale))); }
  struct Own : torch::nn::Module {
    Own() {
      scale = register_parameter("scale", torch::empty({8}));
      draw();
    }
    void draw() {
      const torch::NoGradGuard no_grad;
      scale.uniform_(0.5, 1);
    }
    at::Tensor scale;
  };
  torch::nn::Linear first = nullptr, second = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  std::shared_ptr<Own> own;
};

bool drawOwn(torch::nn::Module& module) {
  auto* const own = module.as<Drawn::Own>();
  if (own) own->draw();
  return own != nullptr;
}

TEST(Weights, AreDrawnAsConstructorsDrawThem) {
  torch::manual_seed(7);
  const auto expected = std::make_shared<Drawn>(), on_host = std::make_shared<Drawn>(),
             on_meta = std::make_shared<Drawn>();
  toMeta(*on_meta);
  torch::manual_seed(3);
  const at::Tensor next = torch::rand({1});
  torch::manual_seed(3);
  TrainingModel reference = train(expected);
  for (const auto& net : {on_host, on_meta}) {
    TrainingModel model = train(net);
    initWeights(model, 7, drawOwn);
    stepOf(model);
    model.copyWeightsToHost();
  }
  stepOf(reference);
  reference.copyWeightsToHost();
  for (const auto& net : {on_host, on_meta}) {
    for (const auto& item : expected->named_parameters())
      EXPECT_TRUE(at::equal(item.value(), net->named_parameters()[item.key()])) << item.key();
    for (const auto& item : expected->named_buffers())
      EXPECT_TRUE(at::equal(item.value(), net->named_buffers()[item.key()])) << item.key();
  }
}

TEST(Weights, AreDrawnWithoutAChangeOfTorchsNumbers) {
  const auto net = made(1);
  TrainingModel model = train(net);
  torch::manual_seed(3);
  const at::Tensor next = torch::rand({1});
  torch::manual_seed(3);
  initWeights(model, 7);
  EXPECT_TRUE(at::equal(torch::rand({1}), next));
}

TEST(Weights, AreRefusedWhereNobodyKnowsFirstValues) {
  const auto on_host = std::make_shared<Drawn>(), on_meta = std::make_shared<Drawn>();
  toMeta(*on_meta);
  for (const auto& net : {on_host, on_meta}) {
    TrainingModel model = train(net);
    EXPECT_EQ(codeOf([&] { initWeights(model, 7); }), "E0708");
  }
  TrainingModel model = train(on_meta);
  initWeights(model, 7, [](torch::nn::Module&) { return false; });
  EXPECT_EQ(codeOf([&] { stepOf(model); }), "E0708");
  for (const at::Tensor& each : on_meta->parameters()) EXPECT_TRUE(each.is_meta());
  initWeights(model, 7, drawOwn);
  stepOf(model);
}

TEST(Weights, AreDrawnForTheDevicesToo) {
  const auto net = made(1), twin = made(7);
  TrainingModel model = train(net), other = train(twin);
  model.compile(torch::randn({6, 4}), torch::zeros({6}, torch::kLong));
  initWeights(model, 7);
  EXPECT_TRUE(at::equal(stepOf(model), stepOf(other)));
}

}  // namespace abele::test::weights_test
