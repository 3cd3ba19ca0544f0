// Modules of LibTorch whose forward reads values: attention compares query and key, batch normalisation without a
// momentum reads how many batches it has seen.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace reads_test {

namespace nn = torch::nn;
using abele::test::codeOf;
using at::Tensor;

constexpr int64_t kMicroBatches = 2;

abele::Options options() {
  at::set_num_threads(1);
  abele::Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(kMicroBatches);
  return options;
}

/// Compares some steps of training with eager gradient accumulation, bit for bit.
template <class Make, class Loss>
void expectEager(Make make, Loss loss_of, const std::vector<Tensor>& inputs) {
  torch::manual_seed(1);
  auto eager = make();
  torch::manual_seed(1);
  auto net = make();
  auto model = abele::trainingModel(
      net, [&](const std::vector<Tensor>& batch) { return loss_of(net, batch); }, options(),
      abele::optim::SGD{.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    eager->zero_grad();
    Tensor loss;
    for (int64_t k = 0; k < kMicroBatches; ++k) {
      std::vector<Tensor> batch;
      for (const Tensor& t : inputs) batch.push_back(t.chunk(kMicroBatches)[static_cast<size_t>(k)]);
      loss = loss_of(eager, batch);
      (loss / kMicroBatches).backward();
    }
    {
      torch::NoGradGuard no_grad;
      for (Tensor& p : eager->parameters())
        if (p.grad().defined()) p.add_(p.grad(), -0.1);
    }
    EXPECT_TRUE(torch::equal(model(inputs)[0], loss)) << "step " << step;
  }
  model.copyWeightsToHost();
  for (const auto& item : eager->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), net->named_parameters()[item.key()])) << item.key();
  for (const auto& item : eager->named_buffers())
    EXPECT_TRUE(torch::equal(item.value(), net->named_buffers()[item.key()])) << item.key();
}

nn::MultiheadAttention attention() { return nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)); }
Tensor attend(nn::MultiheadAttention net, const Tensor& q, const Tensor& k, const Tensor& v) {
  return std::get<0>(net(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)));
}

struct Sequences {
  Sequences() {
    torch::manual_seed(2);
    for (Tensor* t : {&q, &k, &v}) *t = torch::randn({4, 5, 8});
  }
  Tensor q, k, v;
};

TEST(Reads, AttentionOverDifferentSequencesOfOneLength) {
  const Sequences s;
  const auto loss = [](auto& net, const auto& in) { return attend(net, in[0], in[1], in[2]).square().mean(); };
  const auto marked = [&](auto& net, const auto& in) { return abele::identityLoss(loss(net, in)); };
  expectEager(attention, marked, {s.q, s.k, s.v});
  expectEager(attention, marked, {s.q, s.k, s.k.clone()});
  expectEager(attention, marked, {s.q, s.q.clone(), s.q.clone()});
}

TEST(Reads, DecodersOfLibTorch) {
  const Sequences s;
  const auto make = [] {
    return nn::TransformerDecoder(
        nn::TransformerDecoderOptions(nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16).dropout(0), 2));
  };
  expectEager(make,
              [](auto& net, const auto& in) {
                abele::beginBlock("memory", 0);
                const Tensor memory = in[1].transpose(0, 1) * 2;
                abele::beginBlock("decoder", 1);
                return torch::mse_loss(net(in[0].transpose(0, 1), memory).transpose(0, 1), in[2]);
              },
              {s.q, s.k, s.v});
}

TEST(Reads, AnAnswerThatChangesEndsTheStepAndNothingElse) {
  const Sequences s;
  torch::manual_seed(1);
  nn::MultiheadAttention net = attention();
  auto model = abele::trainingModel(
      net, [&](Tensor q, Tensor k, Tensor v) { return torch::mse_loss(attend(net, q, k, v), torch::zeros({5, 2, 8})); },
      options(), abele::optim::SGD{.lr = 0.1});
  model(s.q, s.k, s.k);
  model.copyWeightsToHost();
  const Tensor before = net->in_proj_weight.clone();
  EXPECT_EQ(codeOf([&] { model(s.q, s.q, s.q); }), "E0101");
  EXPECT_EQ(codeOf([&] { model(s.q, s.k, s.v); }), "E0101");
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(before, net->in_proj_weight));
  model(s.q, s.v, s.v);
  model.copyWeightsToHost();
  EXPECT_FALSE(torch::equal(before, net->in_proj_weight));
}

TEST(Reads, BatchNormalisationWithoutMomentumAveragesAllBatches) {
  torch::manual_seed(2);
  const Tensor images = torch::randn({8, 3, 6, 6}), labels = torch::randint(4, {8}, torch::kLong);
  const auto make = [] {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 4, 3)),
                          nn::BatchNorm2d(nn::BatchNorm2dOptions(4).momentum(std::nullopt)), nn::ReLU(), nn::Flatten(),
                          nn::Linear(64, 4),
                          nn::BatchNorm1d(nn::BatchNorm1dOptions(4).momentum(std::nullopt).affine(false)));
  };
  expectEager(make, [](auto& net, const auto& in) { return torch::cross_entropy_loss(net->forward(in[0]), in[1]); },
              {images, labels});
}

struct CountingImpl : nn::Module {
  CountingImpl() {
    count = register_buffer("count", torch::ones({}, torch::kLong));
    norm = register_module("norm", nn::BatchNorm1d(4));
  }
  Tensor count;
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Counting);

template <class Fn>
std::string codeOfForward(Fn forward) {
  Counting net;
  return codeOf([&] { abele::inferenceModel(net, [&](Tensor x) { return forward(net, x); })(torch::ones({8, 4})); });
}

TEST(Reads, BuffersThatForwardDoesNotWriteAreCheckedToo) {
  Counting net;
  auto model =
      abele::inferenceModel(net, [&](Tensor x) { return net->count.item<int64_t>() > 0 ? net->norm(x) : x * 3; });
  const Tensor x = torch::randn({8, 4});
  net->eval();
  const auto same = [&] { return torch::equal(model({x})[0], net->norm(x)); };
  EXPECT_TRUE(same());
  net->count.zero_();
  model.copyWeightsToDevice();
  EXPECT_EQ(codeOf([&] { model({x}); }), "E0101");
  net->count.fill_(1);
  model.copyWeightsToDevice();
  EXPECT_TRUE(same());
}

TEST(Reads, OtherReadsAreRefused) {
  EXPECT_EQ(codeOfForward([](Counting net, Tensor x) {
              net->count.add_(1);
              return x * net->count.item<int64_t>();
            }),
            "E0101");
  EXPECT_EQ(codeOfForward([](Counting net, Tensor x) {
              const Tensor out = net->count.item<int64_t>() > 0 ? x * 2 : x;
              net->count.zero_();
              return out;
            }),
            "E0101");
  EXPECT_EQ(codeOfForward([](Counting net, Tensor x) {
              const Tensor out = net->norm(x);
              return net->norm->num_batches_tracked.item<int64_t>() > 0 ? out : x;
            }),
            "E0101");
  // The read is followed by a batch normalisation, but by one that does not use 1 / count.
  EXPECT_EQ(codeOfForward([](Counting net, Tensor x) {
              return net->norm->num_batches_tracked.item<int64_t>() >= 0 ? net->norm(x) : x;
            }),
            "E0101");
  EXPECT_EQ(codeOfForward([](Counting, Tensor x) { return torch::allclose(x, x + 1) ? x : x * 2; }), "E0101");
}

// The program compares the number of an image's words with the number of its pieces.
TEST(Reads, IntegersThatFollowFromIntegerArgumentsAreChecked) {
  torch::manual_seed(2);
  const Tensor pieces = torch::randn({4, 3, 8}), labels = torch::randn({4, 7, 8});
  Tensor ids = torch::randint(9, {4, 7}, torch::kLong);
  ids.narrow(1, 2, 3).fill_(9);
  const auto make = [] { return nn::Linear(8, 8); };
  const auto loss = [](auto& net, const auto& in) {
    const Tensor is_piece = in[2].eq(9);
    const int64_t found = is_piece.sum().template item<int64_t>();
    TORCH_CHECK(found * 8 == in[0].numel(), found, " words");
    const Tensor x = torch::zeros({in[2].size(0), 7, 8}).masked_scatter(is_piece.unsqueeze(-1), net(in[0]));
    return torch::mse_loss(net(x) * found, in[1]);
  };
  expectEager(make, loss, {pieces, labels, ids});
  auto net = make();
  auto model = abele::trainingModel(
      net, [&](const std::vector<Tensor>& in) { return loss(net, in); }, options(), abele::optim::SGD{.lr = 0.1});
  model({pieces, labels, ids});
  model.copyWeightsToHost();
  const Tensor before = net->weight.clone();
  Tensor other = ids.clone();
  other[3][2] = 0;
  EXPECT_EQ(codeOf([&] { model({pieces, labels, other}); }), "E0101");
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(before, net->weight));
  model({pieces, labels, ids.flip(1)});
  EXPECT_EQ(codeOfForward([](Counting, Tensor x) { return x * x.sum().to(torch::kLong).item<int64_t>(); }), "E0101");
}

}  // namespace reads_test
