// TorchScript modules in the place of torch::nn's, as torch::jit::load returns them.
#include <sstream>

#include <gtest/gtest.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace abele::test::script_test {

/// Two layers, a running mean, and what forward takes beside tensors. Saved and loaded, as a file would be.
torch::jit::Module network() {
  torch::manual_seed(1);
  torch::jit::Module first("First"), second("Second"), net("Net");
  first.register_parameter("weight", torch::randn({8, 4}).requires_grad_(), /*is_buffer=*/false);
  first.register_buffer("calls", torch::zeros({1}));
  first.define(R"(
def forward(self, x):
    self.calls.add_(1)
    return torch.relu(torch.linear(x, self.weight))
)");
  second.register_parameter("weight", torch::randn({2, 8}).requires_grad_(), /*is_buffer=*/false);
  second.define(R"(
def forward(self, x):
    return torch.linear(x, self.weight)
)");
  net.register_module("first", first);
  net.register_module("second", second);
  net.define(R"(
def forward(self, x):
    return self.second.forward(self.first.forward(x))
def loss(self, x, y):
    return torch.mse_loss(self.forward(x), y)
)");
  std::stringstream file;
  net.save(file);
  return torch::jit::load(file);
}

torch::jit::Module scripted(const std::string& forward) {
  torch::jit::Module net("Own");
  net.define(forward);
  return net;
}

/// A step of SGD over micro-batches, by hand.
at::Tensor eagerStep(torch::jit::Module& net, const at::Tensor& x, const at::Tensor& y, int64_t count, double lr) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& each : net.parameters()) parameters.push_back(each);
  torch::optim::SGD optimizer(parameters, lr);
  optimizer.zero_grad();
  at::Tensor loss;
  const int64_t rows = x.size(0) / count;
  for (int64_t k = 0; k < count; ++k) {
    loss = torch::mse_loss(net.forward({x.narrow(0, k * rows, rows)}).toTensor(), y.narrow(0, k * rows, rows));
    (loss / static_cast<double>(count)).backward();
  }
  optimizer.step();
  return loss.detach();
}

Options accumulating() {
  Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(4);
  return options;
}

/// Eager runs of a script are compared as it is written: its own optimizer rounds otherwise from the second call on.
struct Script : testing::Test {
  void SetUp() override {
    at::set_num_threads(1);
    torch::jit::setGraphExecutorOptimize(false);
  }
  void TearDown() override { torch::jit::setGraphExecutorOptimize(true); }
  at::Tensor x = torch::linspace(-1, 1, 32).reshape({8, 4}), y = torch::linspace(-1, 1, 16).reshape({8, 2});
};

TEST_F(Script, PredictsByItsOwnForward) {
  torch::jit::Module net = network(), twin = network();
  auto model = inferenceModel(net);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(model(x)[0], twin.forward({x}).toTensor()));
  model.copyWeightsToHost();
  EXPECT_EQ(net.attr("first").toModule().attr("calls").toTensor().item<float>(), 1);
}

TEST_F(Script, TrainsWithTheBitsOfEager) {
  for (const bool in_stages : {false, true}) {
    torch::jit::Module net = network(), twin = network();
    if (in_stages) placeModules(net, {{"first", 0}, {"second", 1}});
    auto forward = [net](const at::Tensor& a, const at::Tensor& b) mutable {
      return torch::mse_loss(net.forward({a}).toTensor(), b);
    };
    auto model = trainingModel(net, forward, accumulating(), optim::SGD{.lr = 0.1});
    for (int step = 0; step < 3; ++step)
      EXPECT_TRUE(at::equal(model(x, y)[0], eagerStep(twin, x, y, 4, 0.1))) << step << " " << in_stages;
    EXPECT_EQ(model.memoryReport().devices.size(), in_stages ? 2U : 1U);
    model.copyWeightsToHost();
    for (const auto& each : net.named_parameters())
      for (const auto& other : twin.named_parameters())
        EXPECT_TRUE(each.name != other.name || at::equal(each.value, other.value)) << each.name;
  }
}

TEST_F(Script, TakesAnOptimizerOfLibTorch) {
  torch::jit::Module net = network(), twin = network();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& each : net.parameters()) parameters.push_back(each);
  torch::optim::SGD optimizer(parameters, 0.1);
  auto forward = [net](const at::Tensor& a, const at::Tensor& b) mutable {
    return torch::mse_loss(net.forward({a}).toTensor(), b);
  };
  auto model = trainingModel(net, forward, accumulating(), optimizer);
  EXPECT_TRUE(at::equal(model(x, y)[0], eagerStep(twin, x, y, 4, 0.1)));
  EXPECT_EQ(codeOf([&] { trainingModel(net, forward, accumulating(), optimizer); }), "E0709");
}

TEST_F(Script, TakesAndReturnsStructures) {
  torch::jit::Module net = scripted(R"(
def forward(self, xs: List[Tensor], named: Dict[str, Tensor], mask: Optional[Tensor], scale: float, add: bool = True):
    out = xs[0] * scale + named["b"]
    if mask is not None:
        out = out * mask
    if add:
        out = out + xs[1]
    return {"out": out, "sum": out.sum()}, [out, out + 1], (out * 2, None)
)");
  using Named = std::map<std::string, at::Tensor>;
  using Result = std::tuple<Named, std::vector<at::Tensor>, std::pair<at::Tensor, std::optional<at::Tensor>>>;
  auto model = inferenceModel(net);
  const auto [named, list, pair] =
      model.call<Result>(std::vector<at::Tensor>{x, x + 1}, Named{{"b", x * 3}}, std::nullopt, 2.0);
  const at::Tensor out = x * 2 + x * 3 + (x + 1);
  EXPECT_TRUE(at::equal(named.at("out"), out));
  EXPECT_TRUE(at::equal(list[1], out + 1));
  EXPECT_TRUE(at::equal(pair.first, out * 2));
  EXPECT_FALSE(pair.second);
}

TEST_F(Script, DictionariesKeepTheirOrder) {
  torch::jit::Module net = scripted(R"(
def forward(self, named: Dict[str, Tensor]):
    total = torch.zeros_like(named["b"])
    for key in named.keys():
        total = total * 2 + named[key]
    return {"total": total, "double": total * 2}
)");
  torch::OrderedDict<std::string, at::Tensor> in;
  in.insert("c", x);
  in.insert("b", x + 1);
  auto model = inferenceModel(net);
  const auto out = model.call<torch::OrderedDict<std::string, at::Tensor>>(in);
  EXPECT_TRUE(at::equal(out["total"], x * 2 + (x + 1)));
  EXPECT_EQ(out[0].key(), "total");
  EXPECT_EQ(out[1].key(), "double");
}

TEST_F(Script, RefusesWhatDoesNotFit) {
  torch::jit::Module none("None"), numbers = scripted("def forward(self, x):\n    return x.item()\n");
  EXPECT_EQ(codeOf([&] { inferenceModel(none); }), "E0708");
  auto model = inferenceModel(scripted("def forward(self, x):\n    return x * 2\n"));
  EXPECT_EQ(codeOf([&] { model(x, x); }), "E0708");
  EXPECT_EQ(codeOf([&] { model(3); }), "E0708");
  EXPECT_TRUE(at::equal(model(x)[0], x * 2));
  auto reads = inferenceModel(numbers);
  EXPECT_EQ(codeOf([&] { reads(torch::ones({1})); }), "E0101");
}

TEST_F(Script, RefusesToReplaceItsTensors) {
  torch::jit::Module inner("Inner"), net("Net");
  inner.register_buffer("mean", torch::zeros({4}));
  inner.define("def forward(self, x):\n    self.mean = self.mean * 0.5 + x.mean(0)\n    return x - self.mean\n");
  net.register_module("norm", inner);
  net.register_buffer("last", torch::zeros({8, 4}));
  net.define("def forward(self, x):\n    self.last = x + 1\n    return self.norm.forward(x)\n");
  const at::Tensor mean = net.attr("norm").toModule().attr("mean").toTensor(), last = net.attr("last").toTensor();
  auto own = inferenceModel(net);
  EXPECT_EQ(codeOf([&] { own(x); }), "E0108");
  auto called = inferenceModel(net, [net](const at::Tensor& a) mutable { return net.forward({a}).toTensor(); });
  EXPECT_NE(errorOf([&] { called(x); }).find("replaced the tensor last"), std::string::npos);
  EXPECT_TRUE(net.attr("norm").toModule().attr("mean").toTensor().is_same(mean));
  EXPECT_TRUE(net.attr("last").toTensor().is_same(last));
}

TEST_F(Script, StandsForItselfOnce) {
  torch::jit::Module net = network();
  const std::shared_ptr<torch::nn::Module> module = moduleOf(net);
  EXPECT_EQ(module, moduleOf(net));
  EXPECT_EQ(module->parameters().size(), 2U);
  EXPECT_TRUE(module->named_parameters().contains("first.weight"));
  EXPECT_TRUE(
      module->named_parameters()["first.weight"].is_same(net.attr("first").toModule().attr("weight").toTensor()));
}

TEST(AnyModule, RunsByItsOwnForward) {
  torch::nn::AnyModule any(torch::nn::Linear(4, 2));
  const at::Tensor x = torch::randn({3, 4});
  auto model = inferenceModel(any);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(model(x)[0], any.forward(x)));
  auto short_lived = inferenceModel(torch::nn::AnyModule(torch::nn::ReLU()));
  EXPECT_TRUE(at::equal(short_lived(x)[0], torch::relu(x)));
  EXPECT_EQ(codeOf([&] { inferenceModel(torch::nn::AnyModule()); }), "E0708");
}

}  // namespace abele::test::script_test
