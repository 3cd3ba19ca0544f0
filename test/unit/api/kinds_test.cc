// Arguments and results other than tensors and lists of tensors: plain values, dictionaries, structs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unordered_map>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace kinds_test {

namespace nn = torch::nn;
using abele::test::codeOf;
using at::Tensor;

enum class Act { kRelu, kTanh };

struct Batch {
  Tensor ids, mask;
  std::optional<Tensor> labels;
  auto fields() { return std::tie(ids, mask, labels); }
};

Tensor rows(int64_t n = 4) {
  torch::manual_seed(3);
  return torch::randn({n, 4});
}

TEST(Kinds, ValuesThatAreNoTensorsAreThoseOfTheFirstCall) {
  nn::Linear net(4, 4);
  auto model = abele::inferenceModel(
      net, [net](Tensor x, bool twice, int64_t shift, double factor, std::string how, Act act) mutable {
        Tensor out = act == Act::kRelu ? torch::relu(net(x)) : torch::tanh(net(x));
        if (twice) out = out * 2;
        return how == "sum" ? (out * factor + shift).sum(1) : out;
      });
  torch::NoGradGuard no_grad;
  const Tensor x = rows();
  const Tensor expected = (torch::tanh(net(x)) * 2 * 0.1 + 3).sum(1);
  EXPECT_TRUE(torch::equal(model(x, true, 3, 0.1, "sum", Act::kTanh)[0], expected));
  EXPECT_TRUE(torch::equal(model(x, true, 3L, 0.1, std::string("sum"), Act::kTanh)[0], expected));
  EXPECT_EQ(codeOf([&] { model(x, true, 4, 0.1, "sum", Act::kTanh); }), "E0704");
  EXPECT_EQ(codeOf([&] { model(x, true, 3, 0.1, "mean", Act::kTanh); }), "E0704");
  EXPECT_EQ(codeOf([&] { model(x, false, 3, 0.1, "sum", Act::kTanh); }), "E0704");
  EXPECT_TRUE(torch::equal(model(x, true, 3, 0.1, "sum", Act::kTanh)[0], expected));
}

TEST(Kinds, ValuesThatDoNotFitForwardAreRefused) {
  nn::Linear net(4, 4);
  const auto forward = [net](Tensor x, int64_t n) mutable { return net(x) * n; };
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(net, forward)(rows(), "two"); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(net, forward)(rows(), 0.5); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(net, forward)(rows()); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::inferenceModel(net, forward)(rows(), rows()); }), "E0708");
}

TEST(Kinds, DefaultsOfAForwardHold) {
  struct ScaledImpl : nn::Module {
    Tensor forward(Tensor x, int64_t times = 2) { return x * times; }
  };
  const auto net = std::make_shared<ScaledImpl>();
  EXPECT_TRUE(torch::equal(abele::inferenceModel(net)(rows())[0], rows() * 2));
  EXPECT_TRUE(torch::equal(abele::inferenceModel(net)(rows(), 3)[0], rows() * 3));
  auto lambda =
      abele::inferenceModel(net, [](Tensor x, Tensor y = torch::ones({4}), int64_t n = 5) { return x + y * n; });
  EXPECT_TRUE(torch::equal(lambda(rows())[0], rows() + 5));
}

TEST(Kinds, Dictionaries) {
  nn::Linear net(4, 4);
  using Hashed = std::unordered_map<std::string, Tensor>;
  using Ordered = torch::OrderedDict<std::string, Tensor>;
  auto model = abele::inferenceModel(net, [net](Hashed in) mutable {
    Ordered out;
    out.insert("sum", in.at("x") + in.at("y"));
    out.insert("net", net(in.at("x")));
    return out;
  });
  const Tensor x = rows(), y = rows() * 3;
  const Ordered out = model.call<Ordered>(Hashed{{"x", x}, {"y", y}});
  torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(out["sum"], x + y));
  EXPECT_TRUE(torch::equal(out["net"], net(x)));
  Ordered other_order;
  other_order.insert("y", y);
  other_order.insert("x", x);
  EXPECT_TRUE(torch::equal(model.call<Hashed>(other_order).at("sum"), x + y));
  EXPECT_EQ(codeOf([&] { model(Hashed{{"x", x}}); }), "E0704");
  EXPECT_EQ(codeOf([&] { model(Hashed{{"x", x}, {"z", y}}); }), "E0704");
}

template <class Map>
std::vector<std::string> keysOf(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& item : map) {
    if constexpr (requires { item.key(); })
      keys.push_back(item.key());
    else
      keys.push_back(item.first);
  }
  return keys;
}

TEST(Kinds, DictionariesKeepTheOrderOfTheProgram) {
  using Ordered = torch::OrderedDict<std::string, Tensor>;
  using Falling = std::map<std::string, Tensor, std::greater<>>;
  // The program depends on the order of the keys.
  const auto forward = [](const Ordered& in) {
    Ordered out;
    Tensor sum = torch::zeros({4, 4});
    for (const auto& item : in) {
      sum = sum * 2 + item.value();
      out.insert("after " + item.key(), sum);
    }
    return std::pair(out, Falling{{"a", sum + 1}, {"b", sum + 2}});
  };
  auto model = abele::inferenceModel(forward);
  for (const auto& keys : {std::vector<std::string>{"y", "z", "x"}, {"x", "y", "z"}, {"y", "z", "x"}}) {
    Ordered in;
    for (const std::string& key : keys) in.insert(key, rows() * key[0]);
    const auto [expected, expected_falling] = forward(in);
    const auto [found, falling] = model.call<std::pair<Ordered, Falling>>(in);
    ASSERT_EQ(keysOf(found), keysOf(expected));
    for (const auto& item : expected) EXPECT_TRUE(torch::equal(found[item.key()], item.value())) << item.key();
    EXPECT_EQ(keysOf(falling), (std::vector<std::string>{"b", "a"}));
    const std::vector<Tensor> list = model(in);
    ASSERT_EQ(list.size(), 5u);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(list[i], expected[i].value())) << i;
    EXPECT_TRUE(torch::equal(list[3], expected_falling.at("b")));
  }
  EXPECT_EQ(model.numPrograms(), 2);  // one for each order
}

TEST(Kinds, StructsAndExamplesOfDataSets) {
  nn::Linear net(4, 4);
  auto model = abele::trainingModel(net, [net](Batch batch, int64_t scale) mutable {
    const Tensor out = net(batch.ids) * batch.mask * scale;
    return std::pair(Batch{out, batch.mask, std::nullopt}, torch::mse_loss(out, *batch.labels));
  });
  const Tensor x = rows(), mask = torch::ones({4, 1});
  Tensor expected;
  {
    torch::NoGradGuard no_grad;
    expected = net(x) * 2;
  }
  const auto [out, loss] = model.call<std::pair<Batch, Tensor>>(Batch{x, mask, x}, 2);
  EXPECT_TRUE(torch::equal(out.ids, expected));
  EXPECT_FALSE(out.labels);
  EXPECT_EQ(codeOf([&] { model(Batch{x, mask, std::nullopt}, 2); }), "E0704");
}

TEST(Kinds, ExamplesOfDataSets) {
  nn::Linear net(4, 4);
  const torch::data::Example<> example(rows(), rows() * 2);
  const Tensor expected = torch::mse_loss(net(example.data), example.target);
  auto model = abele::trainingModel(
      net, [net](torch::data::Example<> one) mutable { return torch::mse_loss(net(one.data), one.target); });
  EXPECT_TRUE(torch::equal(model(example)[0], expected));
}

}  // namespace kinds_test
