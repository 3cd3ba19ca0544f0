// What a program says about itself, random numbers, and what cannot be captured.
#include <optional>
#include <thread>

#include "capture/same_program.h"
#include "fixture.h"

namespace abele::capture {
namespace {

namespace nn = torch::nn;

struct Simple {
  nn::Linear linear{4, 4};
  Tensorised tensors{linear.ptr()};
  at::Tensor x = torch::ones({3, 4});

  Request request(Forward forward, bool training = true) {
    Request r;
    r.forward = std::move(forward);
    r.arguments = {x};
    r.model = tensors.model;
    r.training = training;
    r.source_location = [] { return std::string("train.py:7"); };
    return r;
  }
};

/// Runs a capture that must fail; the model, the mode and the random state must be as before.
void expectError(ErrorCode code, Simple& simple, const Forward& forward, const std::string& text = {},
                 bool training = true) {
  const ByName before = simple.tensors.contents();
  const at::Tensor random = at::detail::getDefaultCPUGenerator().get_state();
  try {
    capture(simple.request(forward, training));
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(errorCodeText(code), std::string(errorCodeText(error.code()))) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    EXPECT_FALSE(error.message().remedy.empty());
  }
  expectSame(before, simple.tensors.contents(), "model tensor after a failed capture");
  EXPECT_TRUE(sameBits(random, at::detail::getDefaultCPUGenerator().get_state()));
  EXPECT_FALSE(isCapturing());
  // An ordinary capture works afterwards.
  const Recording recording = capture(
      simple.request([&](Tensors in) { return Tensors{torch::mse_loss(simple.linear->forward(in[0]), in[0])}; }));
  EXPECT_FALSE(recording.graph.nodes.empty());
}

// --- losses ----------------------------------------------------------------------------------------------------------

ir::ValueId lossOf(const ir::Graph& graph) {
  for (const ir::Output& output : graph.outputs)
    if (output.kind == ir::OutputKind::kLoss) return output.value;
  return ir::kNone;
}

TEST(Loss, BuiltInLossesMarkThemselves) {
  Simple simple;
  const at::Tensor classes = torch::tensor({0, 1, 2});
  const std::vector<std::function<at::Tensor(at::Tensor)>> losses = {
      [&](at::Tensor y) { return torch::l1_loss(y, torch::zeros_like(y)); },
      [&](at::Tensor y) { return torch::mse_loss(y, torch::zeros_like(y)); },
      [&](at::Tensor y) { return torch::nn::functional::cross_entropy(y, classes); },
      [&](at::Tensor y) { return torch::nn::functional::nll_loss(torch::log_softmax(y, 1), classes); },
      [&](at::Tensor y) { return torch::binary_cross_entropy_with_logits(y, torch::ones_like(y)); },
      [&](at::Tensor y) { return torch::binary_cross_entropy(torch::sigmoid(y), torch::ones_like(y)); },
      [&](at::Tensor y) { return torch::kl_div(torch::log_softmax(y, 1), torch::ones_like(y) / 4); },
      [&](at::Tensor y) { return torch::smooth_l1_loss(y, torch::zeros_like(y)); },
      [&](at::Tensor y) { return torch::huber_loss(y, torch::zeros_like(y)); },
      [&](at::Tensor y) { return torch::soft_margin_loss(y, torch::ones_like(y)); },
      [&](at::Tensor y) { return torch::hinge_embedding_loss(y, torch::ones_like(y)); },
      [&](at::Tensor y) { return torch::poisson_nll_loss(y, torch::ones_like(y), true, false, 1e-8, 1); },
      [&](at::Tensor y) { return torch::margin_ranking_loss(y[0], y[1], torch::ones({4})); },
      [&](at::Tensor y) { return torch::cosine_embedding_loss(y, y * 2, torch::ones({3})); },
      [&](at::Tensor y) { return torch::triplet_margin_loss(y, y * 2, y * 3); },
  };
  for (size_t i = 0; i < losses.size(); ++i) {
    SCOPED_TRACE(i);
    const Recording recording =
        capture(simple.request([&](Tensors in) { return Tensors{losses[i](simple.linear->forward(in[0]))}; }));
    ASSERT_EQ(recording.graph.outputs[0].kind, ir::OutputKind::kResult);
    EXPECT_EQ(lossOf(recording.graph), recording.graph.outputs[0].value);
  }
}

TEST(Loss, ALossThatFeedsAnotherIsDemoted) {
  Simple simple;
  const Recording recording = capture(simple.request([&](Tensors in) {
    at::Tensor y = simple.linear->forward(in[0]);
    at::Tensor total = torch::mse_loss(y, in[0]) + torch::l1_loss(y, in[0]);
    markLoss(total);
    return Tensors{y, total};
  }));
  EXPECT_EQ(lossOf(recording.graph), recording.graph.outputs[1].value);
}

TEST(Loss, NoneIsAnError) {
  Simple simple;
  expectError(
      ErrorCode::E0102, simple, [&](Tensors in) { return Tensors{simple.linear->forward(in[0]).sum()}; },
      "abele::identityLoss");
}

TEST(Loss, TwoAreAnError) {
  Simple simple;
  expectError(
      ErrorCode::E0103, simple,
      [&](Tensors in) {
        at::Tensor y = simple.linear->forward(in[0]);
        return Tensors{torch::mse_loss(y, in[0]) + torch::l1_loss(y, in[0])};
      },
      "train.py:7");
}

TEST(Loss, InferenceNeedsNone) {
  Simple simple;
  const Recording recording =
      capture(simple.request([&](Tensors in) { return Tensors{simple.linear->forward(in[0])}; }, /*training=*/false));
  EXPECT_EQ(lossOf(recording.graph), ir::kNone);
  EXPECT_FALSE(recording.graph.training);
}

// --- blocks ----------------------------------------------------------------------------------------------------------

TEST(Blocks, ForwardAndBackwardNodesKnowTheirs) {
  nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
  Tensorised tensors(model.ptr());
  Request request;
  request.training = true;
  request.model = tensors.model;
  request.arguments = {torch::ones({3, 4})};
  request.forward = [&](Tensors in) {
    at::Tensor h = in[0] * 2;
    for (int i = 0; i < 3; ++i) {
      beginBlock(nextAutoBlockId(), {i});
      pushScope("layer" + std::to_string(i));
      h = torch::tanh(model[i]->as<nn::Linear>()->forward(h)) + h;
      popScope();
    }
    endBlock();
    return Tensors{torch::mse_loss(h, in[0])};
  };
  resetAutoBlockId();
  const ir::Graph graph = capture(request).graph;
  ASSERT_EQ(graph.blocks.size(), 4u);
  EXPECT_EQ(graph.blocks[3].user_id, "2");
  EXPECT_EQ(graph.blocks[3].ipu_id, 2);
  std::map<int, int> forward, backward;
  for (const ir::Node& node : graph.nodes) {
    auto& counts = node.direction == ir::Direction::kForward ? forward : backward;
    ++counts[node.block];
    if (node.op == "aten::tanh_backward" || node.op == "aten::tanh" || node.op == "aten::mm") {
      EXPECT_EQ(node.scope, "layer" + std::to_string(node.block - 1)) << node.op;
    }
  }
  EXPECT_EQ(forward[0], 1);          // the multiplication
  EXPECT_EQ(forward[ir::kNone], 1);  // the loss
  for (int block : {1, 2, 3}) {
    EXPECT_EQ(forward[block], 4) << block;   // t, addmm, tanh, add
    EXPECT_GE(backward[block], 5) << block;  // tanh_backward, mm, t, sum, view, ...
  }
  EXPECT_EQ(backward[0], 0);
  // Sums of the two gradients of a residual belong to the block whose function made the later one.
  EXPECT_EQ(backward[ir::kNone], 1);
}

TEST(Blocks, ReusedIdsAreTheSameBlock) {
  Simple simple;
  const ir::Graph graph = capture(simple.request([&](Tensors in) {
                            beginBlock("a", {});
                            at::Tensor y = simple.linear->forward(in[0]);
                            beginBlock("b", {});
                            y = y * 2;
                            beginBlock("a", {});
                            return Tensors{torch::mse_loss(y, in[0])};
                          })).graph;
  EXPECT_EQ(graph.blocks.size(), 3u);
  EXPECT_EQ(graph.nodes.front().block, 1);
  for (const ir::Node& node : graph.nodes) {
    if (node.op == "aten::mse_loss") {
      EXPECT_EQ(node.block, 1);
    }
  }
  EXPECT_EQ(graph.nodes.front().source, "train.py:7");
}

TEST(Blocks, OutsideACaptureAnnotationsDoNothing) {
  beginBlock("a", {1});
  pushScope("s");
  popScope();
  endBlock();
  markLoss(torch::ones({}));
  EXPECT_FALSE(isCapturing());
  resetAutoBlockId();
  EXPECT_EQ(nextAutoBlockId(), "0");
  EXPECT_EQ(nextAutoBlockId(), "1");
}

// --- random numbers --------------------------------------------------------------------------------------------------

TEST(Random, EveryKindOfRandomOperator) {
  auto forward = [](Tensors x) {
    at::Tensor y = torch::dropout(x[0], 0.25, true) + torch::rand_like(x[0]) * torch::randn_like(x[0]);
    y = y + torch::rand({3, 8}) + torch::randn({3, 8}) + torch::randint(0, 9, {3, 8}) +
        torch::bernoulli(torch::full({3, 8}, 0.5));
    y = torch::feature_dropout(y.unsqueeze(2), 0.5, true).squeeze(2) + torch::alpha_dropout(y, 0.1, true);
    y = y.index({torch::indexing::Slice(), torch::randperm(8)}) + torch::empty({3, 8}).uniform_(-1, 1);
    y = y + torch::rrelu(y, 0.1, 0.3, true) + torch::normal(0.0, 1.0, {3, 8}) + torch::empty({3, 8}).exponential_();
    return Tensors{y + torch::multinomial(torch::ones({3, 8}), 8).to(torch::kFloat)};
  };
  const Recording recording = expectCaptured(nullptr, forward, {torch::ones({3, 8})}, {torch::full({3, 8}, 2.f)},
                                             /*training=*/false);
  int64_t sum = 0;
  for (const ir::Node& node : recording.graph.nodes) {
    if (node.random_draws <= 0) continue;
    EXPECT_EQ(node.random_offset, sum) << node.op;
    sum += node.random_draws;
  }
  EXPECT_EQ(recording.graph.random_draws, sum);
  EXPECT_EQ(count(recording.graph, "aten::native_dropout"), 0u);
}

// Numbers drawn one at a time are counted apart; the spare lies behind the last pair.
TEST(Random, NormalNumbersOneAtATime) {
  for (const int before : {0, 1}) {  // the generator of the capture has no spare, or one
    torch::manual_seed(3);
    if (before > 0) torch::randn({before});
    auto forward = [](Tensors x) {
      at::Tensor y = x[0] + torch::randn({3}).sum();
      y = torch::dropout(y, 0.25, true);
      y = y + torch::randn({2}).sum();
      y = y + torch::randn({16}).sum();
      y = y + torch::zeros({6, 6}).narrow(1, 0, 3).normal_().sum();
      return Tensors{y + torch::zeros({5}).log_normal_().sum()};
    };
    const Recording recording = expectCaptured(nullptr, forward, {torch::ones({4, 4})}, {torch::ones({4, 4})},
                                               /*training=*/false);
    const ir::Graph& graph = recording.graph;
    std::vector<Normals> found;
    std::vector<int64_t> draws;
    for (const ir::Node& node : graph.nodes) {
      if (!node.isRandom()) continue;
      found.push_back(node.normals);
      draws.push_back(node.random_draws);
    }
    ASSERT_EQ(draws.size(), 6u);
    const int64_t mask = draws[1], bulk = draws[3];
    EXPECT_EQ(draws, (std::vector<int64_t>{0, mask, 0, bulk, 0, 0}));
    const std::vector<Normals> expected = {
        {.count = 3, .before = 0, .spare = 0},     {.count = 0, .before = 3},
        {.count = 2, .before = 3, .spare = 0},     {.count = 0, .before = 5},
        {.count = 18, .before = 5, .spare = mask}, {.count = 5, .before = 23, .spare = mask + bulk}};
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], expected[i]) << i;
    EXPECT_EQ(graph.normals, (Normals{.count = 28, .spare = mask + bulk}));
  }
}

TEST(Random, CheckpointedForwardDrawsTheSameNumbersAgain) {
  auto forward = [](Tensors x) {
    const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    at::Tensor y = torch::dropout(x[0], 0.5, true);
    torch::rand({5});
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(state);
    return Tensors{y, torch::dropout(x[0], 0.5, true)};
  };
  const Recording recording =
      expectCaptured(nullptr, forward, {torch::ones({32, 32})}, {torch::full({32, 32}, 3.f)}, /*training=*/false);
  EXPECT_TRUE(sameBits(recording.results[0], recording.results[1]));
}

TEST(Random, SeedingInForwardHasNoEffectOnTheStream) {
  Request request;
  at::Generator generator = seeded(11);
  request.forward = [](Tensors in) {
    torch::manual_seed(5);
    return Tensors{torch::rand_like(in[0]), torch::rand_like(in[0])};
  };
  request.arguments = {torch::ones({4})};
  request.generator = &generator;
  const Recording recording = capture(request);
  at::Generator stream = seeded(11);
  for (const at::Tensor& result : recording.results) EXPECT_TRUE(sameBits(result, torch::rand({4}, stream)));
  // It stays seeded, as in eager.
  EXPECT_TRUE(sameBits(torch::rand({4}), torch::rand({4}, seeded(5))));
}

TEST(Random, TheDefaultGeneratorBelongsToOthers) {
  torch::manual_seed(3);
  at::Tensor drawn;
  Request request;
  at::Generator generator = seeded(11);
  request.forward = [&](Tensors in) {
    const at::Tensor y = torch::dropout(in[0], 0.5, true) + torch::randn({4});
    std::thread([&] { drawn = torch::rand({4}); }).join();
    return Tensors{y};
  };
  request.arguments = {torch::ones({4})};
  request.generator = &generator;
  capture(request);
  at::Generator expected = seeded(3);
  EXPECT_TRUE(sameBits(drawn, torch::rand({4}, expected)));
  EXPECT_TRUE(sameBits(torch::rand({4}), torch::rand({4}, expected)));
}

TEST(Random, OperatorsWithoutAGeneratorDrawFromTheStream) {
  const auto forward = [](Tensors in) { return Tensors{std::get<0>(torch::native_dropout(in[0], 0.5, true))}; };
  expectCaptured(nullptr, forward, {torch::ones({32, 32})}, {torch::full({32, 32}, 3.f)}, /*training=*/false);
}

// --- the same call twice ---------------------------------------------------------------------------------------------

std::optional<Parting> partingOf(const Forward& forward) {
  Request request;
  request.forward = forward;
  request.arguments = {torch::full({2, 2}, 2.0f)};
  request.prints_contents = true;
  const Recording first = capture(request);
  return compare(first, capture(request));
}

TEST(SameProgram, OnlyOtherOperatorsAreAskedForTheirLines) {
  int64_t line = 0;
  bool is_longer = false;
  Request request;
  request.forward = [&](Tensors in) {
    const at::Tensor y = in[0].relu() * 2;
    return Tensors{is_longer ? y.exp() : y};
  };
  request.arguments = {torch::full({2, 2}, 2.0f)};
  request.source_location = [&] { return "train.py:" + std::to_string(++line); };
  const Recording first = capture(request);
  request.earlier = &first;
  is_longer = true;
  line = 100;
  const std::vector<ir::Node> nodes = capture(request).graph.nodes;
  ASSERT_EQ(nodes.size(), first.graph.nodes.size() + 1);
  for (size_t i = 0; i < first.graph.nodes.size(); ++i) EXPECT_EQ(nodes[i].source, first.graph.nodes[i].source);
  EXPECT_EQ(nodes.back().source, "train.py:101");
}

TEST(SameProgram, StateOfForwardPartsThem) {
  int64_t count = 0;
  const auto scaled = partingOf([&](Tensors in) { return Tensors{in[0] * ++count}; });
  ASSERT_TRUE(scaled);
  EXPECT_EQ(scaled->op, "aten::mul.Scalar");
  EXPECT_NE(scaled->first.find('1'), std::string::npos);
  EXPECT_NE(scaled->second.find('2'), std::string::npos);
  at::Tensor kept;
  EXPECT_TRUE(partingOf([&](Tensors in) {
    if (!kept.defined()) kept = in[0].mean(0);
    return Tensors{in[0] - kept};
  }));
  EXPECT_TRUE(partingOf([&](Tensors in) { return Tensors{in[0] + torch::full({2}, static_cast<double>(++count))}; }));
  EXPECT_TRUE(partingOf([&](Tensors in) { return ++count % 2 == 0 ? in : Tensors{in[0], in[0]}; }));
}

TEST(SameProgram, WhatIsPreparedOnceDoesNot) {
  at::Tensor mask;
  int64_t count = 0;
  EXPECT_FALSE(partingOf([&](Tensors in) {
    ++count;
    if (!mask.defined()) mask = torch::arange(4.0).view({2, 2}).t();
    at::Tensor out = torch::zeros({2, 2});
    out[0] = in[0][1];
    return Tensors{in[0] * mask + torch::rand({2}), out, torch::ones({2})};
  }));
}

// --- values that the program reads -----------------------------------------------------------------------------------

TEST(Reads, ValuesOfInputsAreAnError) {
  Simple simple;
  expectError(
      ErrorCode::E0101, simple, [](Tensors in) { return Tensors{in[0] * in[0].sum().item<float>()}; }, "train.py:7",
      false);
  expectError(
      ErrorCode::E0101, simple, [](Tensors in) { return in[0].sum().gt(0).item<bool>() ? in : Tensors{}; }, "", false);
  expectError(
      ErrorCode::E0101, simple, [&](Tensors in) { return torch::equal(simple.linear->weight, in[0]) ? in : Tensors{}; },
      "aten::equal", false);
  expectError(
      ErrorCode::E0101, simple, [](Tensors in) { return Tensors{in[0] * torch::rand({}).item<float>()}; }, "", false);
}

TEST(Reads, ASwallowedErrorIsStillThrown) {
  Simple simple;
  expectError(
      ErrorCode::E0101, simple,
      [](Tensors in) {
        try {
          in[0].sum().item<float>();
        } catch (const std::exception&) {
        }
        return in;
      },
      "", false);
}

TEST(Reads, ConstantsAreBakedIn) {
  auto forward = [](Tensors x) {
    const int64_t n = torch::arange(5).sum().item<int64_t>();
    return Tensors{x[0] * n + x[0].size(0)};
  };
  const Recording recording =
      expectCaptured(nullptr, forward, {torch::ones({3, 4})}, {torch::full({3, 4}, 2.f)}, /*training=*/false);
  EXPECT_EQ(count(recording.graph, "aten::_local_scalar_dense"), 0u);
}

TEST(Reads, ArgumentChecksOfOneHotAreNotReads) {
  auto forward = [](Tensors x) { return Tensors{torch::one_hot(x[0], 5)}; };
  expectCaptured(nullptr, forward, {torch::tensor({0, 1, 4})}, {torch::tensor({3, 3, 2})}, /*training=*/false);
  Simple simple;
  expectError(
      ErrorCode::E0101, simple, [](Tensors in) { return Tensors{torch::one_hot(in[0].to(torch::kLong))}; }, "", false);
}

TEST(Reads, LengthsOfPackedSequencesMustBeConstant) {
  nn::LSTM lstm(nn::LSTMOptions(4, 6).batch_first(true));
  const at::Tensor lengths = torch::tensor({3, 2});
  auto run = [&](const at::Tensor& x, const at::Tensor& n) {
    auto packed = nn::utils::rnn::pack_padded_sequence(x, n, /*batch_first=*/true);
    auto output = std::get<0>(lstm->forward_with_packed_input(packed));
    return Tensors{std::get<0>(nn::utils::rnn::pad_packed_sequence(output, /*batch_first=*/true)).sum()};
  };
  torch::manual_seed(1);
  const Tensors first{torch::randn({2, 3, 4})}, second{torch::randn({2, 3, 4})};
  expectCaptured(lstm.ptr(), [&](Tensors x) { return run(x[0], lengths); }, first, second);
  Simple simple;
  expectError(
      ErrorCode::E0101, simple,
      [&](Tensors in) { return run(first[0], in[0].to(torch::kLong).select(0, 0).slice(0, 0, 2) + 1); }, "", false);
}

TEST(Reads, LengthsOfCtcLossMustBeConstant) {
  Simple simple;
  const at::Tensor targets = torch::tensor({{1, 2}, {2, 1}});
  auto loss = [&](const at::Tensor& x, const at::Tensor& lengths) {
    auto scores = simple.linear->forward(x).unsqueeze(1).expand({3, 2, 4}).log_softmax(2);
    return Tensors{torch::ctc_loss(scores, targets, lengths, torch::tensor({2, 1}))};
  };
  EXPECT_FALSE(
      capture(simple.request([&](Tensors in) { return loss(in[0], torch::tensor({3, 3})); })).graph.nodes.empty());
  expectError(
      ErrorCode::E0101, simple, [&](Tensors in) { return loss(in[0], in[0].sum(0).slice(0, 0, 2).to(torch::kLong)); },
      "aten::_ctc_loss.Tensor");
}

TEST(Reads, MemoryReadOutsideTorchIsAnErrorToo) {
  Simple simple;
  expectError(
      ErrorCode::E0101, simple,
      [](Tensors in) {
        readValue(torch::ones({2}), "numpy");
        readValue(in[0] + 1, "tolist");
        return in;
      },
      "tolist, train.py:7", false);
}

// --- what cannot be captured -----------------------------------------------------------------------------------------

TEST(Unsupported, SparseTensors) {
  Simple simple;
  expectError(
      ErrorCode::E0105, simple, [](Tensors in) { return Tensors{in[0].to_sparse().to_dense()}; }, "layout", false);
}

TEST(Unsupported, OtherDevices) {
  Simple simple;
  expectError(ErrorCode::E0105, simple, [](Tensors in) { return Tensors{in[0].to(torch::kMeta)}; }, "meta", false);
}

TEST(Unsupported, ResizingATensorWithElements) {
  Simple simple;
  expectError(
      ErrorCode::E0106, simple,
      [](Tensors in) {
        at::Tensor y = in[0] * 2;
        y.resize_({5, 5});
        return Tensors{y};
      },
      "resize", false);
}

TEST(Unsupported, ReplacedParameters) {
  Simple simple;
  expectError(
      ErrorCode::E0108, simple,
      [&](Tensors in) {
        simple.linear->weight.set_data(torch::zeros({4, 4}));
        return Tensors{torch::mse_loss(simple.linear->forward(in[0]), in[0])};
      },
      "weight.copy_");
}

TEST(Unsupported, NestedCaptures) {
  Simple simple;
  expectError(
      ErrorCode::E0107, simple,
      [&](Tensors in) {
        capture(simple.request([](Tensors y) { return y; }, false));
        return in;
      },
      "", false);
}

TEST(Unsupported, ExceptionsOfForwardPassThroughUnchanged) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  Simple simple;
  const ByName before = simple.tensors.contents();
  EXPECT_THROW(capture(simple.request([&](Tensors in) -> Tensors {
                 torch::NoGradGuard no_grad;
                 simple.linear->weight.add_(in[0].sum());
                 torch::rand({3});
                 throw Mine("forward");
               })),
               Mine);
  expectSame(before, simple.tensors.contents(), "model tensor");
  EXPECT_THROW(capture(simple.request([&](Tensors in) { return Tensors{in[0].matmul(in[0])}; })), c10::Error);
  EXPECT_TRUE(torch::GradMode::is_enabled());
  EXPECT_FALSE(isCapturing());
}

// --- results ---------------------------------------------------------------------------------------------------------

TEST(Results, HostTensorsAreReturnedAsTheyAre) {
  Simple simple;
  const at::Tensor host = torch::full({2}, 5.f);
  const Recording recording = capture(
      simple.request([&](Tensors in) { return Tensors{host, in[0] + 1, at::Tensor(), in[0]}; }, /*training=*/false));
  EXPECT_EQ(recording.result_output, (std::vector<int32_t>{ir::kNone, 0, ir::kNone, 1}));
  ASSERT_EQ(recording.host_results.size(), 2u);
  EXPECT_TRUE(recording.host_results[0].is_same(host));
}

TEST(Results, OperatorsAreTimed) {
  Simple simple;
  const Recording recording =
      capture(simple.request([&](Tensors in) { return Tensors{in[0].matmul(in[0].t())}; }, /*training=*/false));
  int64_t total = 0;
  for (const ir::Node& node : recording.graph.nodes) total += node.time_ns;
  EXPECT_GT(total, 0);
}

TEST(Results, TheTextFormKeepsTheGraph) {
  Simple simple;
  const Recording recording = capture(simple.request([&](Tensors in) {
    beginBlock("a", {0});
    return Tensors{torch::mse_loss(torch::dropout(simple.linear->forward(in[0]), 0.5, true), in[0])};
  }));
  const std::string text = ir::print(recording.graph);
  EXPECT_EQ(ir::print(ir::parse(text)), text);
}

}  // namespace
}  // namespace abele::capture
