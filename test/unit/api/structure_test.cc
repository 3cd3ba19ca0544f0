// Arguments and results of forward other than tensors, and modules that are wrapped with their own forward.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace structure_test {

using abele::test::codeOf;
namespace nn = torch::nn;
using at::Tensor;

/// Has default arguments, so that it can be called with one, two or three tensors.
struct ScaledImpl : nn::Module {
  ScaledImpl() { inner = register_module("inner", nn::Linear(4, 3)); }
  Tensor forward(const Tensor& x, const Tensor& factor = {}, std::optional<Tensor> shift = {}) {
    const Tensor out = factor.defined() ? inner(x) * factor : inner(x);
    return shift ? out + *shift : out;
  }
  nn::Linear inner{nullptr};
};
TORCH_MODULE(Scaled);

struct ClassifierImpl : nn::Module {
  ClassifierImpl() {
    torch::manual_seed(1);
    inner = register_module("inner", nn::Linear(4, 3));
  }
  std::pair<Tensor, Tensor> forward(Tensor x, Tensor target) {
    const Tensor out = inner(x);
    return {out, torch::cross_entropy_loss(out, target)};
  }
  nn::Linear inner{nullptr};
};
TORCH_MODULE(Classifier);

abele::Options oneThread() { return abele::Options().threadsPerDevice(1); }

TEST(Structures, MapsGoInAndComeOut) {
  const Tensor x = torch::randn({6, 4}), mask = torch::rand({6, 4});
  nn::Linear linear(4, 3);
  using Map = std::map<std::string, Tensor>;
  auto model = abele::inferenceModel(linear, [&](const Map& in) {
    const Tensor out = linear(in.at("x") * in.at("mask"));
    return Map{{"sum", out.sum(1)}, {"out", out}};
  });
  const std::vector<Tensor> list = model(Map{{"x", x}, {"mask", mask}});
  EXPECT_TRUE(torch::equal(list[0], linear(x * mask)));  // by name: "out" is before "sum"
  const Map results = model.call<Map>(Map{{"x", x}, {"mask", mask}});
  EXPECT_TRUE(torch::equal(results.at("sum"), linear(x * mask).sum(1)));
  EXPECT_EQ(codeOf([&] { model(Map{{"x", x}, {"other", mask}}); }), "E0704");
  EXPECT_EQ(codeOf([&] { model(x); }), "E0704");
  EXPECT_EQ(codeOf([&] { model.call<Tensor>(Map{{"x", x}, {"mask", mask}}); }), "E0708");
}

TEST(Structures, MessagesSayFormsInWords) {
  const auto forward = [](const std::map<std::string, Tensor>& in, std::pair<Tensor, int64_t> two,
                          std::optional<Tensor>) { return in.at("x") + two.first; };
  auto model = abele::inferenceModel(forward);
  const Tensor x = torch::ones({2, 2});
  const std::optional<Tensor> none;
  using Map = std::map<std::string, Tensor>;
  model(Map{{"x", x}, {"y", x}}, std::pair(x, 3), none);
  const auto textOf = [](auto call) -> std::string {
    try {
      call();
    } catch (const abele::Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string changed = textOf([&] { model(Map{{"x", x}}, std::pair(x, 3), std::optional(x)); });
  EXPECT_NE(changed.find("found     {x: a tensor}, [a tensor, 3], a tensor"), std::string::npos) << changed;
  EXPECT_NE(changed.find("expected  {x: a tensor, y: a tensor}, [a tensor, 3]"), std::string::npos) << changed;
  const std::string wrong = textOf([&] { model.call<Map>(Map{{"x", x}, {"y", x}}, std::pair(x, 3), none); });
  EXPECT_NE(wrong.find("found     a tensor"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("expected  a map"), std::string::npos) << wrong;
  EXPECT_EQ((changed + wrong).find("=<length>"), std::string::npos);
}

TEST(Structures, OptionalsAreThereOrNot) {
  const Tensor x = torch::randn({6, 4}), y = torch::randn({6, 4});
  const auto forward = [](Tensor a, std::optional<Tensor> b) {
    return std::tuple<Tensor, std::optional<Tensor>>(b ? a + *b : a * 2, b);
  };
  auto without = abele::inferenceModel(forward), with = abele::inferenceModel(forward);
  EXPECT_TRUE(torch::equal(without(x, std::nullopt)[0], x * 2));
  EXPECT_TRUE(torch::equal(without(x)[0], x * 2));  // the same call
  EXPECT_EQ(codeOf([&] { without(x, y); }), "E0704");
  EXPECT_TRUE(torch::equal(with(x, y)[0], x + y));
  const auto [sum, second] = with.call<std::tuple<Tensor, std::optional<Tensor>>>(x, y);
  EXPECT_TRUE(second && torch::equal(*second, y));
}

TEST(Structures, TuplesVectorsAndArraysNest) {
  const Tensor a = torch::randn({4, 3}), b = torch::randn({4, 3}), c = torch::randn({4, 3});
  auto model = abele::inferenceModel([](std::tuple<Tensor, std::vector<Tensor>> in, std::array<Tensor, 2> more) {
    const auto& [first, list] = in;
    return std::make_pair(first + more[1], std::vector<Tensor>{list.at(0) * more[0], list.at(1)});
  });
  const auto in = std::make_tuple(a, std::vector<Tensor>{b, c});
  const std::array<Tensor, 2> more{b, c};
  const auto results = model.call<std::pair<Tensor, std::vector<Tensor>>>(in, more);
  EXPECT_TRUE(torch::equal(results.first, a + c));
  EXPECT_TRUE(torch::equal(results.second.at(0), b * b));
  EXPECT_TRUE(torch::equal(results.second.at(1), c));
  EXPECT_EQ(model(in, more).size(), 3u);
}

TEST(Structures, ForwardAndCallMustFit) {
  const Tensor x = torch::randn({2, 2});
  auto two = abele::inferenceModel([](Tensor a, Tensor b) { return a + b; });
  EXPECT_EQ(codeOf([&] { two(x); }), "E0708");
  EXPECT_EQ(codeOf([&] { two(x, x, x); }), "E0708");
  EXPECT_EQ(codeOf([&] { two(std::make_tuple(x, x)); }), "E0708");
  EXPECT_TRUE(torch::equal(two(x, x)[0], x + x));  // the model survives
  auto generic = abele::inferenceModel([](auto a, auto b) { return a + b; });
  EXPECT_EQ(codeOf([&] { generic(x); }), "E0708");
  EXPECT_TRUE(torch::equal(generic(x, x)[0], x + x));
}

TEST(Modules, BringTheirForward) {
  const Tensor x = torch::randn({6, 4});
  nn::Sequential net(nn::Linear(4, 5), nn::Tanh(), nn::Linear(5, 2));
  auto model = abele::inferenceModel(net, oneThread());
  EXPECT_TRUE(torch::equal(model(x)[0], net->forward(x)));
  EXPECT_EQ(model.stateDict().size(), 4u);  // weights, not constants
  {
    torch::NoGradGuard no_grad;
    for (Tensor& p : net->parameters()) p.add_(1);
  }
  model.copyWeightsToDevice();
  EXPECT_TRUE(torch::equal(model(x)[0], net->forward(x)));
}

TEST(Modules, MayHaveDefaultsAndStructures) {
  const Tensor x = torch::randn({6, 4}), factor = torch::randn({6, 3}), shift = torch::randn({6, 3});
  Scaled net;
  EXPECT_TRUE(torch::equal(abele::inferenceModel(net, oneThread())(x)[0], net(x)));
  EXPECT_TRUE(torch::equal(abele::inferenceModel(net, oneThread())(x, factor)[0], net->forward(x, factor)));
  EXPECT_TRUE(torch::equal(abele::inferenceModel(net, oneThread())(x, Tensor(), shift)[0], net(x) + shift));
  nn::LSTM lstm(4, 6);
  const Tensor steps = torch::randn({5, 2, 4});
  const auto state = std::make_tuple(torch::randn({1, 2, 6}), torch::randn({1, 2, 6}));
  auto from_zero = abele::inferenceModel(lstm, oneThread()), from_state = abele::inferenceModel(lstm, oneThread());
  using Result = std::tuple<Tensor, std::tuple<Tensor, Tensor>>;
  const auto [out, last] = from_zero.call<Result>(steps);
  const torch::NoGradGuard no_grad;  // as in inference: on AVX2, torch's LSTM rounds in another way with gradients
  EXPECT_TRUE(torch::equal(out, std::get<0>(lstm(steps))));
  EXPECT_TRUE(torch::equal(std::get<1>(last), std::get<1>(std::get<1>(lstm(steps)))));
  EXPECT_TRUE(torch::equal(from_state(steps, state)[0], std::get<0>(lstm(steps, state))));
}

/// A module whose forward is const.
struct Constant : nn::Module {
  Constant() : inner(register_module("inner", nn::Linear(4, 2))) {}
  Tensor forward(const Tensor& x) const { return torch::linear(x, inner->weight, inner->bias); }
  nn::Linear inner;
};

template <class Module>
Tensor predict(const Module& module, const Tensor& x) {
  return abele::inferenceModel(module, oneThread())(x)[0];
}

TEST(Modules, MayBeConstant) {
  const Tensor x = torch::randn({6, 4}), y = torch::randn({6, 2});
  nn::Linear holder(4, 2);
  const auto pointer = std::make_shared<Constant>();
  const Constant net;
  const nn::AnyModule any(holder);
  EXPECT_TRUE(torch::equal(predict(holder, x), holder(x)));
  EXPECT_TRUE(torch::equal(predict(pointer, x), pointer->forward(x)));
  EXPECT_TRUE(torch::equal(predict(net, x), net.forward(x)));
  EXPECT_TRUE(torch::equal(predict(any, x), holder(x)));
  const auto& constant = holder;
  const Tensor before = holder->weight.detach().clone();
  auto model = abele::trainingModel(
      constant, [holder](Tensor x, Tensor y) mutable { return torch::mse_loss(holder(x), y); }, oneThread(),
      abele::optim::SGD{.lr = 0.1});
  model(x, y);
  model.copyWeightsToHost();
  EXPECT_FALSE(torch::equal(holder->weight, before));
}

TEST(Functions, TakeListsOfAllTensors) {
  const Tensor x = torch::randn({2, 3}), y = torch::randn({2, 3});
  const auto sum = [](const auto& list) { return list[0] + list[1] * 2; };
  auto by_list = abele::inferenceModel([sum](at::TensorList list) { return sum(list); });
  auto by_reference = abele::inferenceModel([sum](std::vector<Tensor>& list) {
    list.push_back(list[0]);
    return sum(list);
  });
  auto by_value = abele::inferenceModel([sum](std::vector<Tensor>&& list) { return sum(std::move(list)); });
  for (auto* model : {&by_list, &by_reference, &by_value}) {
    EXPECT_TRUE(torch::equal((*model)(x, y)[0], x + y * 2));
    EXPECT_TRUE(torch::equal((*model)({x, y})[0], x + y * 2));
  }
}

TEST(Modules, TrainWithTheirForward) {
  const Tensor x = torch::randn({8, 4}), y = torch::randint(3, {8});
  Classifier net, eager;
  torch::optim::SGD optimizer(eager->parameters(), 0.1);
  auto model = abele::trainingModel(net, oneThread(), abele::optim::SGD{.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto [out, loss] = eager(x, y);
    loss.backward();
    optimizer.step();
    const auto results = model.call<std::pair<Tensor, Tensor>>(x, y);
    EXPECT_TRUE(torch::equal(results.first, out));
    EXPECT_TRUE(torch::equal(results.second, loss));
  }
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(net->inner->weight, eager->inner->weight));
}

TEST(Functions, ThatHoldNothingAreRefusedWhereTheyAreGiven) {
  nn::Linear net(4, 2);
  const std::function<Tensor(Tensor)> empty;
  Tensor (*const null)(const Tensor&) = nullptr;
  EXPECT_EQ(codeOf([&] { abele::trainingModel(net, empty); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(net, empty); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(empty); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(net, null); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::makeInferenceModel(nullptr, nullptr, {}); }), "E0708");
  // A lambda without captures compares with nullptr as well.
  EXPECT_TRUE(
      torch::equal(abele::inferenceModel([](Tensor x) { return x + 1; })(torch::ones({2}))[0], torch::full({2}, 2.0f)));
  const abele::ops::Body body;
  EXPECT_EQ(codeOf([&] { abele::ops::forLoop(2, body, {}); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::ops::cond(torch::ones({1}), body, {}, body, {}); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::ops::HostCall(body, "nothing"); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::MultiConv().run(nullptr); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::popdist::executeOnInstances({0}, nullptr); }), "E0708");
  const abele::RegisterCustomOp without_forward({.domain = "test",
                                                 .name = "Nothing",
                                                 .min_inputs = 1,
                                                 .max_inputs = 1,
                                                 .infer = [](const auto& inputs, const auto&) { return inputs; }});
  const Tensor x = torch::ones({2});
  EXPECT_EQ(
      codeOf([&] { abele::ops::customOp({x}, "test", "Nothing", 1, {{static_cast<int>(x.scalar_type()), {2}}}); }),
      "E0708");
}

TEST(Modules, ThatAreMissingAreRefused) {
  nn::Linear holder = nullptr;
  std::shared_ptr<nn::LinearImpl> pointer;
  const auto forward = [](Tensor x) { return x; };
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(holder); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(pointer, forward); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::trainingModel(static_cast<nn::LinearImpl*>(nullptr), forward); }), "E0708");
}

TEST(Models, ThatWereMovedFromSaySo) {
  auto model = abele::inferenceModel([](Tensor x) { return x * 2; });
  auto next = std::move(model);
  EXPECT_EQ(codeOf([&] { model(torch::ones({1})); }), "E0705");
  EXPECT_EQ(next(torch::ones({1})).size(), 1u);
  EXPECT_EQ(codeOf([&] { next.setRngState(torch::ones({3})); }), "E0708");
  next.setRngState(next.rngState());
}

struct CounterImpl : nn::Module {
  CounterImpl() { count = register_buffer("count", torch::zeros({1})); }
  Tensor forward() { return count.add_(1).clone(); }
  Tensor count;
};
TORCH_MODULE(Counter);

TEST(Modules, CanHaveNoArguments) {
  Counter counter;
  auto model = abele::inferenceModel(counter);
  model.compile();
  EXPECT_EQ(model()[0].item<float>(), 1);
  EXPECT_EQ(model.call<Tensor>().item<float>(), 2);
  EXPECT_EQ(model({})[0].item<float>(), 3);
}

TEST(Structures, GenericForwardsTakeSeparateTensors) {
  const Tensor x = torch::randn({2, 3}), y = torch::randn({2, 3});
  EXPECT_TRUE(torch::equal(abele::inferenceModel([](auto in) { return in.relu(); })(x)[0], x.relu()));
  EXPECT_TRUE(torch::equal(abele::inferenceModel([](const auto& a, const auto& b) { return a - b; })(x, y)[0], x - y));
  auto sum = abele::inferenceModel([](const auto&... each) { return (each + ...); });
  EXPECT_TRUE(torch::equal(sum(x, y)[0], x + y));
  EXPECT_EQ(codeOf([&] { abele::inferenceModel([](auto in) { return in.relu(); })(x, y); }), "E0708");
}

}  // namespace structure_test
