// Blocks for modules by path: they make the right stages, and the numbers do not change.
#include <gtest/gtest.h>

#include <torch/torch.h>
#include <optional>
#include <tuple>
#include <vector>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace placement_test {

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

/// The captured program, with the block of every operation. Also compares a run with eager.
std::string graphOf(Tower net) {
  auto model = abele::inferenceModel(net);
  const at::Tensor x = torch::ones({2, 4});
  EXPECT_TRUE(torch::equal(model(x)[0], net(x)));
  return model.graphText();
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
  const std::string graph = graphOf(net);
  // A block begins where forward uses its module; the first one begins with forward. A stage is a run of blocks of one
  // device.
  for (const char* part :
       {"block 1 \"embedding\" {ipu=0", "block 2 \"layer.0\" {ipu=1", "block 4 \"head\" {ipu=2",
        "= aten.mul.Scalar(%0, 2) {block=1, stage=0", "%10: f32[2,8] = aten.relu(%9) {block=2, stage=1",
        "%15: f32[2,8] = aten.relu(%14) {block=3, stage=1", "{block=4, stage=2"})
    EXPECT_NE(graph.find(part), std::string::npos) << part << "\n" << graph;
  abele::placeModules(net, {});
  EXPECT_EQ(graphOf(net).find("block 1"), std::string::npos);
}

TEST(PlaceModules, NumbersStay) {
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = trained(Tower(3));
  Tower net(3);
  abele::placeModules(net, {{"embedding", 0}, {"layer", 1}, {"layer.2", 2}, {"head", 2}});
  const std::vector<at::Tensor> found = trained(net);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
}

TEST(PlaceModules, SeveralDevicesShareAModule) {
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = trained(Tower(3));
  Tower net(3);
  abele::placeModules(net, {{"embedding", 0}, {"layer", {1, 2}}, {"head", {4, 3}}});
  const std::string graph = graphOf(net);
  for (const char* part : {"block 2 \"layer\" {ipu=1, group=[1, 2], ", "block 3 \"head\" {ipu=4, group=[4, 3], "})
    EXPECT_NE(graph.find(part), std::string::npos) << part << "\n" << graph;
  const std::vector<at::Tensor> found = trained(net);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
}

/// Takes words and returns logits of words, with one matrix: of another module, of one that has it too, or in a Block.
struct TiedImpl : nn::Module {
  enum Kind { kPlain, kRegistered, kInBlock };
  explicit TiedImpl(Kind how) : kind(how) {
    torch::manual_seed(0);
    embedding = register_module("embedding", nn::Embedding(6, 8));
    layer = register_module("layer", nn::Linear(8, 8));
    head = register_module("head", nn::Linear(8, 6));
    if (kind == kRegistered) tied = register_module("tied", std::make_shared<HasMatrix>(embedding->weight));
  }
  struct HasMatrix : nn::Module {
    explicit HasMatrix(const at::Tensor& matrix) { register_parameter("matrix", matrix); }
  };
  at::Tensor loss(at::Tensor x, at::Tensor y) {
    x = torch::relu(layer(embedding(x)));
    std::optional<abele::Block> block;
    if (kind == kInBlock) block.emplace("head", 2);
    const at::Tensor out = at::linear(x, embedding->weight, kind == kPlain ? head->bias : at::Tensor());
    return torch::cross_entropy_loss(out.flatten(0, 1), y.flatten());
  }
  Kind kind;
  nn::Embedding embedding{nullptr};
  nn::Linear layer{nullptr}, head{nullptr};
  std::shared_ptr<HasMatrix> tied;
};
TORCH_MODULE(Tied);

std::vector<at::Tensor> trainedTied(Tied net, const abele::ModulePlacement& placement, std::string* graph,
                                    bool sharded = false) {
  if (!placement.empty()) abele::placeModules(net, placement);
  abele::Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(4);
  if (sharded) options.setExecutionStrategy(abele::ShardedExecution());
  auto model = abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return net->loss(x, y); }, options,
      abele::optim::SGD{.lr = 0.1});
  const at::Tensor words = torch::arange(32).reshape({8, 4}).remainder(6);
  for (int step = 0; step < 3; ++step) model(words, words.flip(1));
  *graph = model.graphText();
  model.copyWeightsToHost();
  return net->parameters();
}

TEST(PlaceModules, WeightsTiedAcrossStagesAreReadWhereForwardIs) {
  at::set_num_threads(1);
  const abele::ModulePlacement three = {{"embedding", 0}, {"layer", 1}, {"head", 2}},
                               of_tied = {{"embedding", 0}, {"layer", 1}, {"tied", 2}};
  for (const auto& [kind, placement, stage] : {std::tuple(TiedImpl::kPlain, three, "block=3, stage=2"),
                                               std::tuple(TiedImpl::kRegistered, of_tied, "block=3, stage=2"),
                                               std::tuple(TiedImpl::kInBlock, three, "block=3, stage=2")}) {
    std::string graph;
    const std::vector<at::Tensor> expected = trainedTied(Tied(kind), {}, &graph);
    const std::vector<at::Tensor> found = trainedTied(Tied(kind), placement, &graph);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << kind << " " << i;
    EXPECT_NE(graph.find(stage), std::string::npos) << graph;
    const std::vector<at::Tensor> sharded = trainedTied(Tied(kind), placement, &graph, /*sharded=*/true);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(sharded[i], expected[i])) << kind << " " << i;
  }
}

TEST(DataParallel, TrainsAsEager) {
  constexpr int64_t kAccumulation = 5, kRows = 2;
  at::set_num_threads(1);
  Tower eager(3), ours(3);
  abele::Options options;
  options.dataParallel(2).threadsPerDevice(1).Training().gradientAccumulation(kAccumulation);
  auto model = abele::trainingModel(
      ours, [ours](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(ours(x), y); }, options,
      abele::optim::SGD{.lr = 0.1, .momentum = 0.9});
  torch::optim::SGD optimizer(eager->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = torch::randn({kAccumulation * kRows, 4}), y = torch::randn({kAccumulation * kRows, 2});
    model(x, y);
    optimizer.zero_grad();
    for (int64_t k = 0; k < kAccumulation; ++k)
      (torch::mse_loss(eager->forward(x.narrow(0, k * kRows, kRows)), y.narrow(0, k * kRows, kRows)) / kAccumulation)
          .backward();
    optimizer.step();
  }
  model.copyWeightsToHost();
  for (size_t i = 0; i < eager->parameters().size(); ++i)
    EXPECT_TRUE(torch::equal(ours->parameters()[i], eager->parameters()[i])) << i;
}

TEST(PlaceModules, TheListMayHaveAnotherOrderThanForward) {
  Tower net(1);
  abele::placeModules(net, {{"head", 1}, {"embedding", 0}});
  auto model = abele::inferenceModel(net, [net](at::Tensor x) mutable { return net->head(net->embedding(x)); });
  const at::Tensor x = torch::ones({2, 4});
  EXPECT_TRUE(torch::equal(model(x)[0], net->head(net->embedding(x))));
  EXPECT_NE(model.graphText().find("stage=1"), std::string::npos) << model.graphText();
}

TEST(PlaceModules, ABlockOfTheProgramEndsWithIt) {
  Tower net(1);
  abele::placeModules(net, {{"embedding", 0}, {"head", 1}});
  auto model = abele::inferenceModel(net, [net](at::Tensor x) mutable {
    at::Tensor y = net->embedding(x);
    {
      const abele::Block block("own", 0);
      y = torch::relu(y);
    }
    return net->head(y + net->embedding->bias);
  });
  const at::Tensor x = torch::ones({2, 4});
  EXPECT_EQ(codeOf([&] { model(x); }), "");
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

}  // namespace placement_test
