// Operators of abele/ops.h in captured programs, compared with the same function outside of a capture.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace ops_test {

using abele::ops::Tensors;
using abele::test::codeOf;

/// The results of forward in an inference model.
Tensors inferred(const abele::Forward& forward, const Tensors& inputs) {
  return abele::inferenceModel([&](const Tensors& given) { return forward(given); })(inputs);
}

void expectSameForward(const abele::Forward& forward, const Tensors& inputs) {
  const Tensors expected = forward(inputs), found = inferred(forward, inputs);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), expected[i].scalar_type());
    EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

struct Weighted : torch::nn::Module {
  explicit Weighted(const at::Tensor& start) : weight(register_parameter("weight", start.clone())) {}
  at::Tensor weight;
};

/// A step of SGD with lr 1 makes start - gradient, which gives the gradient of mean(function(weight)^2) bit for bit.
void expectSameGradient(const at::Tensor& start, const std::function<at::Tensor(const at::Tensor&)>& function) {
  Weighted eager(start), compiled(start);
  const auto loss = [&](const at::Tensor& weight) { return function(weight).to(at::kFloat).square().mean(); };
  loss(eager.weight).backward();
  at::Tensor expected = eager.weight.detach() - eager.weight.grad();
  {
    auto model = abele::trainingModel(
        compiled, [&](at::Tensor scale) { return abele::identityLoss(loss(compiled.weight) * scale); },
        abele::Options().threadsPerDevice(1), abele::optim::SGD{.lr = 1});
    model(torch::ones({1}));
  }
  EXPECT_FALSE(at::equal(expected, start));
  EXPECT_TRUE(at::equal(compiled.weight, expected));
}

at::Tensor random(at::IntArrayRef sizes) {
  torch::manual_seed(5);
  return torch::randn(sizes);
}

class Ops : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(Ops, Nop) {
  expectSameForward([](const Tensors& in) { return Tensors{abele::ops::nop(in[0])}; }, {random({1, 4})});
  expectSameGradient(random({4}), [](const at::Tensor& w) { return abele::ops::nop(w) * 2; });
}

TEST_F(Ops, PrintTensorPassesItsValueAndGradient) {
  testing::internal::CaptureStderr();
  expectSameGradient(random({4}), [](const at::Tensor& w) { return abele::ops::printTensor(w, "named"); });
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("named"), std::string::npos);
  EXPECT_NE(printed.find("named_gradient"), std::string::npos);
  abele::ops::PrintFormat format;
  format.float_format = "roman";
  EXPECT_EQ(codeOf([&] { abele::ops::printTensor(random({2}), "", format); }), "E0702");
}

TEST_F(Ops, DynamicSlice) {
  const auto slice = [](const at::Tensor& x, const at::Tensor& start) {
    return abele::ops::dynamicSlice(x, 1, start, 3, 1);
  };
  const at::Tensor start = torch::tensor({2}, at::kInt);
  expectSameForward([&](const Tensors& in) { return Tensors{slice(in[0], in[1])}; }, {random({1, 6}), start});
  expectSameGradient(random({2, 6}), [&](const at::Tensor& w) { return slice(w, torch::tensor({2}, at::kInt)); });
  EXPECT_EQ(codeOf([&] { abele::ops::dynamicSlice(random({1, 6}), 1, start, 0, 1); }), "E0708");
  EXPECT_EQ(codeOf([&] { abele::ops::dynamicSlice(random({1, 6}), 1, random({1}), 3, 1); }), "E0708");
}

TEST_F(Ops, DynamicUpdate) {
  const at::Tensor base = random({2, 6});
  const auto update = [](const at::Tensor& x, const at::Tensor& part) {
    return abele::ops::dynamicUpdate(x, part, 1, torch::tensor({3}, at::kInt), 2);
  };
  expectSameForward([&](const Tensors& in) { return Tensors{update(in[0], in[1])}; }, {random({1, 6}), random({1, 2})});
  expectSameGradient(random({2, 2}), [&](const at::Tensor& w) { return update(base, w); });
  expectSameGradient(random({2, 6}), [&](const at::Tensor& w) { return update(w, torch::ones({2, 2})); });
  EXPECT_EQ(codeOf([&] { update(random({2, 6}), random({2})); }), "E0708");
}

TEST_F(Ops, SerializedMatMul) {
  using Mode = abele::MatMulSerializationMode;
  const at::Tensor rhs = random({6, 4});
  for (const Mode mode : {Mode::kInputChannels, Mode::kReducingDim, Mode::kOutputChannels, Mode::kDisabled}) {
    const auto product = [&](const at::Tensor& w) { return abele::ops::serializedMatMul(w, rhs, mode, 2); };
    expectSameForward([&](const Tensors& in) { return Tensors{product(in[0])}; }, {random({4, 6})});
    expectSameGradient(random({4, 6}), product);
    EXPECT_TRUE(at::allclose(product(random({4, 6})), random({4, 6}).matmul(rhs)));
  }
  EXPECT_EQ(codeOf([&] { abele::ops::serializedMatMul(random({4, 6}), rhs, Mode::kReducingDim, 5); }), "E0708");
}

TEST_F(Ops, FarthestPointsAndNearest) {
  expectSameForward([](const Tensors& in) { return Tensors{abele::ops::fps(in[0], {0, 4, 8}, 0.5)}; },
                    {random({8, 3})});
  expectSameForward([](const Tensors& in) { return Tensors{abele::ops::nearest(in[0], in[1])}; },
                    {random({8, 3}), random({8, 3}).flip(0)});
  EXPECT_EQ(codeOf([] { abele::ops::fps(random({8}), {0, 9}); }), "E0708");
}

TEST_F(Ops, CtcBeamSearchDecoder) {
  const auto decode = [](const Tensors& in) {
    auto [scores, lengths, paths] = abele::ops::ctcBeamSearchDecoder(in[0], in[1], 0, 4, 2);
    return Tensors{scores, lengths, paths};
  };
  const at::Tensor probabilities = random({5, 5, 4}).log_softmax(2);
  expectSameForward(decode, {probabilities, torch::tensor({5, 4, 3, 2, 1}, at::kInt)});
}

TEST_F(Ops, LoopsAndBranches) {
  const auto grow = [](const Tensors& in) {
    return abele::ops::forLoop(3, [](Tensors x) { return Tensors{x[0] * 2 + 1}; }, {in[0]});
  };
  expectSameForward(grow, {random({1, 4})});
  const auto choose = [](const Tensors& in) {
    const auto up = [](Tensors x) { return Tensors{x[0] + 1}; };
    const auto down = [](Tensors x) { return Tensors{x[0] - 1}; };
    return abele::ops::cond(in[0].sum() > 0, up, {in[0]}, down, {in[0]});
  };
  auto model = abele::inferenceModel([&](const Tensors& in) { return choose(in); });
  for (const double sign : {1.0, -1.0}) {
    const at::Tensor x = torch::full({1, 4}, sign);
    EXPECT_TRUE(at::equal(model({x})[0], x + sign));  // one program, either branch
  }
  Weighted net(random({4}));
  auto training =
      abele::trainingModel(net, [&](at::Tensor x) { return abele::identityLoss(grow({net.weight * x})[0].mean()); });
  EXPECT_EQ(codeOf([&] { training(torch::ones({1})); }), "E0710");
}

TEST_F(Ops, BodiesWriteAroundThem) {
  const auto sum_up = [](const Tensors& in) {
    at::Tensor sum = torch::zeros({4}), first = sum.narrow(0, 0, 1);
    const auto body = [&](Tensors x) {
      sum.add_(x[0].sum(0));
      first.mul_(2);
      return Tensors{x[0] + sum};
    };
    Tensors results = abele::ops::forLoop(3, body, {in[0]});
    results.push_back(sum);
    return results;
  };
  expectSameForward(sum_up, {random({1, 4})});
}

TEST_F(Ops, HostCall) {
  int calls = 0;
  abele::ops::HostCall call(
      [&](Tensors in) {
        ++calls;
        return Tensors{in[0].sqrt()};
      },
      "root");
  auto model = abele::inferenceModel([&](const Tensors& in) { return Tensors{call(in)[0] + 1}; });
  const at::Tensor x = torch::full({1, 4}, 4.0);
  EXPECT_TRUE(at::equal(model({x})[0], torch::full({1, 4}, 3.0)));
  calls = 0;
  EXPECT_TRUE(at::equal(model({x * 4})[0], torch::full({1, 4}, 5.0)));
  EXPECT_EQ(calls, 1);
}

TEST_F(Ops, RegisteredOperator) {
  static const abele::RegisterCustomOp registered({
      .domain = "test.ops",
      .name = "scale",
      .min_inputs = 1,
      .max_inputs = 1,
      .infer = [](const auto& inputs, const auto&) { return inputs; },
      .forward = [](const auto&, const auto& inputs,
                    const auto& attributes) { return Tensors{inputs[0] * attributes.template get<float>("by")}; },
      .backward = [](const auto&, const auto&, const auto&, const auto& gradients,
                     const auto& attributes) { return Tensors{gradients[0] * attributes.template get<float>("by")}; },
  });
  abele::CustomAttributes attributes;
  attributes.set("by", 3.0f);
  const auto scale = [&](const at::Tensor& x) {
    const abele::TensorInfo like{static_cast<int>(x.scalar_type()), x.sizes().vec()};
    return abele::ops::customOp({x}, "test.ops", "scale", 1, {like}, attributes)[0];
  };
  expectSameForward([&](const Tensors& in) { return Tensors{scale(in[0])}; }, {random({1, 4})});
  expectSameGradient(random({4}), scale);
}

TEST_F(Ops, Hints) {
  const at::Tensor image = random({1, 2, 5, 5}), kernel = random({3, 2, 3, 3});
  const auto two = [&](const abele::MultiConv& multi) {
    return inferred(
        [&](const Tensors& in) {
          Tensors out;
          multi.run([&] { out = {torch::conv2d(in[0], kernel), torch::conv2d(in[0] + 1, kernel)}; });
          return Tensors{abele::setAvailableMemory(out[0] + out[1], 0.5)};
        },
        {image});
  };
  abele::MultiConv multi;
  multi.planType(abele::MultiConvPlanType::kSerial).availableMemoryProportions({0.1, 0.2}).cycleBackOff(0.5);
  multi.partialsTypes({abele::FloatType::kHalf}).enableConvDithering({true, false}).perConvReservedTiles(10);
  EXPECT_TRUE(at::equal(two(multi)[0], torch::conv2d(image, kernel) + torch::conv2d(image + 1, kernel)));
  EXPECT_EQ(codeOf([&] { two(multi.availableMemoryProportions({0.1, 0.2, 0.3})); }), "E0710");
  EXPECT_EQ(codeOf([&] { multi.partialsTypes({abele::FloatType::kBFloat16}); }), "E0702");
  EXPECT_EQ(codeOf([&] { abele::setAvailableMemory(image, 1.5); }), "E0702");
  const auto empty = [](const Tensors& in) {
    abele::MultiConv().run([] {});
    return in;
  };
  EXPECT_EQ(codeOf([&] { inferred(empty, {image}); }), "E0710");
  const auto nested = [](const Tensors& in) {
    abele::MultiConv().run([] { abele::MultiConv().run([] {}); });
    return in;
  };
  EXPECT_EQ(codeOf([&] { inferred(nested, {image}); }), "E0710");
}

}  // namespace ops_test
