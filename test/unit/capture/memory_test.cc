// Views, writes in place, aliases and inputs of odd shapes.
#include "fixture.h"

namespace abele::capture {
namespace {

namespace nn = torch::nn;
using torch::indexing::Slice;

at::Tensor randomTensor(std::vector<int64_t> shape, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(shape);
}

/// A parameterless program of one [6,8] input and a linear layer, in training.
Recording expectProgram(const std::function<at::Tensor(at::Tensor)>& body) {
  nn::Linear linear(8, 8);
  auto forward = [&](Tensors x) { return Tensors{body(linear->forward(x[0])).sum()}; };
  return expectCaptured(linear.ptr(), forward, {randomTensor({6, 8}, 1)}, {randomTensor({6, 8}, 2)});
}

TEST(Memory, WriteThroughAViewIsSeenByTheBase) {
  const Recording recording = expectProgram([](at::Tensor h) {
    at::Tensor y = h * 2;
    at::Tensor row = y.select(1, 0);
    row.add_(row * 3);
    y.index({Slice(), Slice(2, 5)}).mul_(0.5);
    return y * row.unsqueeze(1);
  });
  EXPECT_GE(count(recording.graph, "aten::as_strided"), 1u);  // row, read again after the write to its base
}

TEST(Memory, InPlaceActivationsAndMasks) {
  expectProgram([](at::Tensor h) {
    at::Tensor y = h.clone().relu_();
    y = y.masked_fill(h > 1, -1);
    y = y + 1;
    y.masked_fill_(h < -1, 2);
    y.clamp_(-2, 2);
    return y.sigmoid_() * h;
  });
}

TEST(Memory, IndexPut) {
  expectProgram([](at::Tensor h) {
    at::Tensor y = h * 1.5;
    y.index_put_({torch::tensor({0, 2, 2})}, torch::ones({8}), /*accumulate=*/true);
    y.index_put_({Slice(), torch::tensor({1, 3})}, h.index({Slice(), Slice(0, 2)}));
    y.index_add_(0, torch::tensor({1, 1}), h.slice(0, 0, 2));
    y.scatter_(1, torch::zeros({6, 1}, torch::kLong), 7.0);
    return y;
  });
}

TEST(Memory, SlicesOfSlicesAndExpand) {
  expectProgram([](at::Tensor h) {
    at::Tensor y = h.index({Slice(1, 6), Slice(0, 8, 2)}).index({Slice(1, 4), Slice(1, 3)});
    at::Tensor wide = y.sum(0, true).expand({5, 2});
    at::Tensor z = torch::zeros({5, 2});
    z.index({Slice(1, 4)}).copy_(y);
    z.index({Slice(2, 4)}).index({0}).add_(1);
    return (z * wide).sum() + h.as_strided({3, 2}, {9, 1}, 1).square();
  });
}

TEST(Memory, ChunkUnbindSplitCatStack) {
  expectProgram([](at::Tensor h) {
    auto halves = h.chunk(2, 1);
    auto rows = h.unbind(0);
    auto parts = h.split({1, 2, 3}, 0);
    halves[0] = halves[0] * halves[1];
    at::Tensor all = torch::cat({halves[0], h, parts[2].repeat({2, 1})}, 1);
    return (all.sum(1) * torch::stack(rows).sum(1)).sum() + torch::outer(rows[0], rows[5]).sum();
  });
}

TEST(Memory, WritesIntoChunks) {
  nn::Linear linear(8, 8);
  auto forward = [&](Tensors x) {
    at::Tensor h = linear->forward(x[0]);
    at::Tensor y = torch::empty({6, 8});
    y.slice(1, 0, 4).copy_(h.slice(1, 4, 8));
    y.slice(1, 4, 8).copy_(h.slice(1, 0, 4));
    y.t().slice(0, 3, 5).zero_();
    return Tensors{(y * h).sum()};
  };
  expectCaptured(linear.ptr(), forward, {randomTensor({6, 8}, 1)}, {randomTensor({6, 8}, 2)});
}

TEST(Memory, MetadataChangesInPlace) {
  expectProgram([](at::Tensor h) {
    at::Tensor y = h * 2;
    y.t_();
    y.unsqueeze_(0);
    y.add_(1);
    y.squeeze_();
    y.transpose_(0, 1);
    return y * h;
  });
}

TEST(Memory, OtherElementTypes) {
  nn::Linear linear(8, 8);
  auto forward = [&](Tensors x) {
    at::Tensor h = linear->forward(x[0]);
    at::Tensor bits = h.detach().view(torch::kInt);
    at::Tensor scaled = h.to(torch::kDouble) * x[1].to(torch::kBFloat16);
    at::Tensor complex = torch::view_as_complex(h.reshape({6, 4, 2}));
    at::Tensor sum = torch::view_as_real(complex + complex).slice(2, 0, 1).sum();
    return Tensors{scaled.sum() + sum, bits, h > 0, x[1] + 1, h.argmax(1)};
  };
  const Tensors first{randomTensor({6, 8}, 1), torch::arange(8)};
  const Tensors second{randomTensor({6, 8}, 2), torch::arange(8).flip(0).contiguous()};
  expectCaptured(linear.ptr(), forward, first, second);
}

TEST(Memory, ResultsThatAliasInputsAndEachOther) {
  nn::Linear linear(8, 8);
  auto forward = [&](Tensors x) {
    at::Tensor h = linear->forward(x[0]);
    return Tensors{h.sum(), h, h.t(), x[0], x[0].slice(0, 1, 3), linear->weight, linear->bias.unsqueeze(0), h.detach()};
  };
  expectCaptured(linear.ptr(), forward, {randomTensor({6, 8}, 1)}, {randomTensor({6, 8}, 2)});
}

TEST(Memory, ArgumentsWrittenInPlace) {
  auto forward = [](Tensors x) {
    x[1].slice(0, 1, 3).add_(x[0]);
    return Tensors{x[1] * 2};
  };
  const Tensors first{randomTensor({2, 3}, 1), randomTensor({4, 3}, 2)};
  const Tensors copies{first[0].clone(), first[1].clone()};
  const Recording recording =
      expectCaptured(nullptr, forward, first, {randomTensor({2, 3}, 3), randomTensor({4, 3}, 4)}, /*training=*/false);
  ASSERT_EQ(recording.written_arguments.size(), 1u);
  EXPECT_EQ(recording.written_arguments[0].first, 1);
  EXPECT_TRUE(sameBits(first[0], copies[0]) && sameBits(first[1], copies[1]));
}

TEST(Memory, ArgumentsThatAreNotDense) {
  nn::Linear linear(3, 3);
  auto forward = [&](Tensors x) { return Tensors{linear->forward(x[0]).sum() + x[1].sum()}; };
  auto inputs = [](uint64_t seed) {
    return Tensors{randomTensor({4, 6}, seed).slice(1, 0, 6, 2), randomTensor({1, 5}, seed + 1).expand({3, 5})};
  };
  expectCaptured(linear.ptr(), forward, inputs(1), inputs(5));
}

struct CounterImpl : nn::Module {
  CounterImpl() {
    weight = register_parameter("weight", torch::ones({4}));
    running = register_buffer("running", torch::zeros({4}));
    steps = register_buffer("steps", torch::zeros({}, torch::kLong));
    positions = register_buffer("positions", torch::arange(3, torch::kFloat).unsqueeze(1).expand({3, 4}));
  }
  Tensors forward(const at::Tensor& x) {
    steps.add_(1);
    {
      torch::NoGradGuard no_grad;
      running.mul_(0.9).add_(x.mean(0), 0.1);
      weight.clamp_(-0.5, 0.5);
    }
    outside.add_(1);
    return {(x * weight + running + positions.sum(0) + steps).sum() + outside.sum(), steps, running, outside};
  }
  at::Tensor weight, running, steps, positions;
  at::Tensor outside = torch::arange(4, torch::kFloat);
};
TORCH_MODULE(Counter);

TEST(Memory, BuffersAndParametersWrittenInForward) {
  Counter module;
  const at::Tensor outside = module->outside.clone();
  auto forward = [&](Tensors x) {
    // Eager runs start from the same constant as every replay.
    if (!isCapturing()) module->outside.copy_(outside);
    return module->forward(x[0]);
  };
  const Recording recording =
      expectCaptured(module.ptr(), forward, {randomTensor({5, 4}, 1)}, {randomTensor({5, 4}, 2)});
  size_t updates = 0;
  for (const ir::Output& output : recording.graph.outputs) updates += output.kind == ir::OutputKind::kUpdate;
  EXPECT_EQ(updates, 3u);  // weight, running, steps; not the constant
}

TEST(Memory, OutTensors) {
  nn::Linear linear(8, 8);
  auto forward = [&](Tensors x) {
    at::Tensor h = linear->forward(x[0]).detach();
    at::Tensor fits = torch::zeros({6, 8});
    at::Tensor empty = torch::empty({0});
    at::mul_out(fits, h, h);
    at::cat_out(empty, {h, fits}, 1);
    return Tensors{(linear->weight * 2).sum(), empty, fits};
  };
  expectCaptured(linear.ptr(), forward, {randomTensor({6, 8}, 1)}, {randomTensor({6, 8}, 2)});
}

TEST(Memory, ScalarsAndNumbers) {
  expectProgram([](at::Tensor h) {
    at::Tensor y = 2 * h + 1 - h / 3.5;
    y = torch::pow(y.abs() + 1, 0.5) + torch::full({}, 2.0, torch::kDouble);
    y = torch::where(y > 2, y, torch::scalar_tensor(1.5));
    return torch::addcmul(y, h, h, 0.1) + torch::arange(8).to(torch::kFloat) +
           torch::tensor({1., 2., 3., 4., 5., 6., 7., 8.});
  });
}

TEST(Memory, TransposedParametersAndChannelsLast) {
  nn::Conv2d conv(nn::Conv2dOptions(4, 8, 3));
  conv->to(torch::kFloat);
  {
    torch::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  auto forward = [&](Tensors x) {
    return Tensors{torch::relu(conv->forward(x[0].contiguous(at::MemoryFormat::ChannelsLast))).square().mean()};
  };
  expectCaptured(conv.ptr(), forward, {randomTensor({2, 4, 7, 7}, 1)}, {randomTensor({2, 4, 7, 7}, 2)});
}

TEST(Memory, TemporariesDieAsInEager) {
  auto forward = [](Tensors x) {
    at::Tensor h = x[0] * 2;
    const auto storage = h.storage().getWeakStorageImpl();
    at::Tensor y = h + 1;
    h = at::Tensor();
    EXPECT_TRUE(storage.expired());
    return Tensors{y};
  };
  expectCaptured(nullptr, forward, {randomTensor({4}, 1)}, {randomTensor({4}, 2)}, /*training=*/false);
}

TEST(Memory, AddressesThatAreUsedAgain) {
  auto forward = [](Tensors x) {
    at::Tensor sum = torch::zeros({8});
    for (int i = 0; i < 300; ++i) {
      at::Tensor y = x[0] * i;
      y.slice(0, 0, 4).add_(i);
      sum = sum + y.sin() * torch::full({8}, 1.0 / (i + 1));
    }
    return Tensors{sum};
  };
  expectCaptured(nullptr, forward, {randomTensor({8}, 1)}, {randomTensor({8}, 2)}, /*training=*/false);
}

TEST(Memory, EmptyTensors) {
  expectProgram([](at::Tensor h) {
    at::Tensor none = h.slice(0, 3, 3);
    return torch::cat({none, h, torch::zeros({0, 8})}, 0) + none.sum();
  });
}

}  // namespace
}  // namespace abele::capture
