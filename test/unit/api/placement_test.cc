// Blocks for modules by path: the stages that they make, and that the numbers stay.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace {

using abele::test::codeOf;
namespace nn = torch::nn;

struct TowerImpl : nn::Module {
  explicit TowerImpl(int layers) {
    torch::manual_seed(0);
    embedding = register_module("embedding", nn::Linear(4, 8));
    layer = register_module("layer", nn::ModuleList());
    for (int i = 0; i < layers; ++i) layer->push_back(nn::Sequential(nn::Linear(8, 8), nn::ReLU()));
    head = register_module("head", nn::Linear(8, 2));
  }
  at::Tensor forward(at::Tensor x) {
    x = embedding(x * 2);
    for (const auto& each : *layer) x = each->as<nn::Sequential>()->forward(x);
    return head(x);
  }
  nn::Linear embedding{nullptr}, head{nullptr};
  nn::ModuleList layer{nullptr};
};
TORCH_MODULE(Tower);

/// Blocks of the compiled program, in the order of its stages: "embedding on 0".
std::string reportOf(Tower net) {
  auto model = abele::inferenceModel(net);
  const at::Tensor x = torch::ones({2, 4});
  EXPECT_TRUE(torch::equal(model(x)[0], net(x)));
  return model.report();
}

std::vector<at::Tensor> trained(Tower net) {
  abele::Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(2);
  auto model = abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(net(x), y); }, options,
      abele::optim::SGD{.lr = 0.1});
  for (int step = 0; step < 3; ++step)
    model(torch::linspace(-1, 1, 24).reshape({6, 4}), torch::linspace(0, 1, 12).reshape({6, 2}));
  model.copyWeightsToHost();
  return net->parameters();
}

TEST(PlaceModules, MakesStagesOfModules) {
  Tower net(2);
  abele::placeModules(net, {{"embedding", 0}, {"layer.0", 1}, {"layer.1", 1}, {"head", 2}});
  const std::string report = reportOf(net);
  // Stages are named by their blocks, which begin where forward uses the module.
  for (const char* name : {"embedding", "layer.0", "layer.1", "head"})
    EXPECT_NE(report.find(name), std::string::npos) << report;
  abele::placeModules(net, {});
  EXPECT_EQ(reportOf(net).find("embedding"), std::string::npos);
}

TEST(PlaceModules, NumbersStay) {
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = trained(Tower(3));
  Tower net(3);
  abele::placeModules(net, {{"embedding", 0}, {"layer", 1}, {"layer.2", 2}, {"head", 2}});
  const std::vector<at::Tensor> found = trained(net);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
}

TEST(PlaceModules, AnotherModuleAtTheSameAddressHasNoBlocks) {
  nn::Linear first(4, 4), second(4, 4);
  struct Both : nn::Module {};
  auto outer = std::make_unique<Both>();
  outer->register_module("inner", first);
  abele::placeModules(*outer, {{"inner", 1}});
  Both* address = outer.get();
  outer->~Both();
  new (address) Both;
  outer->register_module("other", second);
  auto model = abele::inferenceModel(*outer, [&](at::Tensor x) { return second(x); });
  EXPECT_TRUE(torch::equal(model(torch::ones({2, 4}))[0], second(torch::ones({2, 4}))));
  EXPECT_EQ(model.report().find("inner"), std::string::npos);
}

TEST(PlaceModules, WrongPathsAreRefused) {
  Tower net(2);
  EXPECT_EQ(codeOf([&] { abele::placeModules(net, {{"encoder", 0}}); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::placeModules(net, {{"layer.0.1", 0}}); }), "E0708");  // a ReLU
  EXPECT_EQ(codeOf([&] { abele::placeModules(net, {{"head", -2}}); }), "E0708");
}

TEST(LayersPerIpu, SharesLayersAsIPUConfigDoes) {
  Tower net(7);
  const auto ipus = [&](std::vector<int> shares) {
    std::vector<int> result;
    for (const auto& [path, ipu] : abele::layersPerIpu(net, "layer", shares, 1)) result.push_back(ipu);
    return result;
  };
  EXPECT_EQ(ipus({2, 3, 2}), (std::vector<int>{1, 1, 2, 2, 2, 3, 3}));
  EXPECT_EQ(ipus({1, -1, -1}), (std::vector<int>{1, 2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(ipus({-1, 2, -1}), (std::vector<int>{1, 1, 2, 2, 3, 3, 3}));
  EXPECT_EQ(abele::layersPerIpu(net, "layer", {7})[3], (std::pair<std::string, int>{"layer.3", 0}));
  for (const std::vector<int>& wrong : {std::vector<int>{1, 2}, {8}, {9, -1}, {-2, 9}})
    EXPECT_EQ(codeOf([&] { ipus(wrong); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::layersPerIpu(net, "layers", {7}); }), "E0708");
}

}  // namespace
