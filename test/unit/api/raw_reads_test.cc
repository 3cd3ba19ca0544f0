// Programs of LibTorch that read memory of captured values themselves, bring generators or parameters of their own, or
// check their inputs.
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace raw_reads_test {

namespace nn = torch::nn;
using abele::test::codeOf;
using at::Tensor;

template <class Fn>
std::string codeOfForward(Fn forward, const abele::Options& options = {}) {
  nn::Linear net(4, 4);
  return codeOf(
      [&] { abele::inferenceModel(net, [&](Tensor x) { return forward(net, x); }, options)(torch::ones({2, 4})); });
}

TEST(RawReads, AddressesOfCapturedValuesAreRefused) {
  EXPECT_EQ(codeOfForward([](nn::Linear, Tensor x) { return x * x.data_ptr<float>()[0]; }), "E0101");
  EXPECT_EQ(codeOfForward([](nn::Linear, Tensor x) {
              const Tensor next = x + 1;
              return x * next.accessor<float, 2>()[0][1];
            }),
            "E0101");
  EXPECT_EQ(codeOfForward([](nn::Linear, Tensor x) { return torch::from_blob(x.data_ptr(), {2, 4}).clone() * 2; }),
            "E0101");
}

TEST(RawReads, OperatorsOfAnotherThreadAreRefused) {
  EXPECT_EQ(codeOfForward([](nn::Linear, Tensor x) {
              Tensor result;
              std::exception_ptr error;
              std::thread([&] {
                try {
                  result = x * 2;
                } catch (...) {
                  error = std::current_exception();
                }
              }).join();
              if (error) std::rethrow_exception(error);
              return result + 1;
            }),
            "E0101");
}

TEST(RawReads, ConstantsMayBeRead) {
  nn::Linear net(4, 4);
  const Tensor table = torch::arange(4, torch::kFloat);
  auto model = abele::inferenceModel(net, [&](Tensor x) {
    const Tensor made = torch::tensor({1.0F, 2.0F});
    return x * table.data_ptr<float>()[3] + made.accessor<float, 1>()[1];
  });
  for (const Tensor& x : {torch::ones({2, 4}), torch::randn({2, 4})})
    EXPECT_TRUE(torch::equal(model(x)[0], x * 3.0F + 2.0F));
  EXPECT_EQ(net->weight.data_ptr<float>()[0], net->weight[0][0].item<float>());  // readable again
}

TEST(RawReads, GeneratorsOfTheProgramAreRefused) {
  const at::Generator own = at::make_generator<at::CPUGeneratorImpl>(3);
  EXPECT_EQ(codeOfForward([&](nn::Linear, Tensor x) { return x + torch::rand({4}, own); }), "E0106");
  EXPECT_EQ(codeOfForward([&](nn::Linear, Tensor x) { return x.clone().normal_(0, 1, own); }), "E0106");
  EXPECT_EQ(
      codeOfForward([](nn::Linear, Tensor x) { return x + torch::rand({4}, at::detail::getDefaultCPUGenerator()); }),
      "");
}

TEST(ForeignParameters, AreComputedWith) {
  nn::Linear inside(4, 4), outside(4, 4);
  const auto train = [&] {
    auto model = abele::trainingModel(
        inside, [&](Tensor x) { return abele::identityLoss(inside(outside(x)).mean()); }, {},
        abele::optim::SGD{.lr = 0.1});
    model(torch::ones({2, 4}));
  };
  const Tensor before = outside->weight.detach().clone();
  EXPECT_EQ(codeOf(train), "");
  EXPECT_TRUE(torch::equal(outside->weight, before));
}

TEST(TrustedReads, AreCheckedInEveryStep) {
  abele::Options options;
  options.deviceIterations(2).trustReads(true);
  nn::Linear net(4, 4);
  auto model = abele::inferenceModel(
      net,
      [&](Tensor x) {
        TORCH_CHECK(torch::isfinite(x).all().item<bool>(), "infinite input");
        return x * (x.max().item<float>() > 10 ? 0.5 : 2);
      },
      options);
  const Tensor good = torch::ones({4, 4}), bad = torch::tensor({{1.0F, 1.0F}, {1.0F, INFINITY}}).repeat({2, 2});
  EXPECT_TRUE(torch::equal(model(good)[0], good * 2));
  EXPECT_EQ(codeOf([&] { model(bad); }), "E0101");
  EXPECT_EQ(codeOf([&] { model(good * 7); }), "E0101");  // max() was read as it is
  EXPECT_TRUE(torch::equal(model(good)[0], good * 2));
}

TEST(Memory, InputsWithoutTheirMemoryAreRefused) {
  nn::Linear net(4, 4);
  auto model = abele::inferenceModel(net, [&](Tensor x) { return net(x); });
  const auto freed = [] {
    Tensor x = torch::ones({2, 4});
    x.storage().unsafeGetStorageImpl()->set_nbytes(8);
    return x;
  };
  EXPECT_EQ(codeOf([&] { model(freed()); }), "E0708");
  model(torch::ones({2, 4}));
  EXPECT_EQ(codeOf([&] { model(freed()); }), "E0708");
}

TEST(HostCalls, OfOtherShapesAreRefused) {
  bool shrinks = false;
  abele::ops::HostCall call(
      [&](const abele::ops::Tensors& in) {
        return abele::ops::Tensors{shrinks ? in[0].narrow(0, 0, 1).clone() : in[0] + 1};
      },
      "shrinks");
  nn::Linear net(4, 4);
  auto model = abele::inferenceModel(net, [&](Tensor x) { return call({x})[0] * 2; });
  const Tensor x = torch::ones({2, 4});
  EXPECT_TRUE(torch::equal(model(x)[0], (x + 1) * 2));
  shrinks = true;
  EXPECT_EQ(codeOf([&] { model(x); }), "E0708");
  shrinks = false;
  EXPECT_TRUE(torch::equal(model(x)[0], (x + 1) * 2));
}

}  // namespace raw_reads_test
