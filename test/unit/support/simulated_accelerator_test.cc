// The simulated accelerator itself: properties that tests of the accelerator backend rely on.
#include <cstring>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "simulated_accelerator/simulated.h"

#if __has_include(<ATen/accelerator/Graph.h>)
#include <ATen/accelerator/Graph.h>
#endif

namespace {

using simulated::takeFindings;

const at::Device kDevice(c10::DeviceType::PrivateUse1, 0), kOther(c10::DeviceType::PrivateUse1, 1);

struct Simulated : ::testing::Test {
  void SetUp() override { takeFindings(); }
  void TearDown() override {
    for (int device = 0; device < simulated::kDevices; ++device) at::accelerator::synchronizeDevice(device);
    simulated::setDelays(0);
    EXPECT_EQ(takeFindings(), std::vector<std::string>{});
  }
  static c10::Stream newStream() { return c10::impl::VirtualGuardImpl(kDevice.type()).getNewStream(kDevice); }
};

bool sameBits(const at::Tensor& a, const at::Tensor& b) { return at::equal(a.cpu(), b.cpu()); }

TEST_F(Simulated, IsTorchsAccelerator) {
  EXPECT_EQ(at::accelerator::getAccelerator(), kDevice.type());
  EXPECT_EQ(at::accelerator::deviceCount(), simulated::kDevices);
  EXPECT_EQ(at::Device("simulated:1"), kOther);
}

TEST_F(Simulated, TensorsComeAndGo) {
  const at::Tensor x = at::randn({3, 5});
  EXPECT_TRUE(sameBits(x.to(kDevice), x));
  EXPECT_TRUE(sameBits(x.to(kDevice).t().contiguous(), x.t()));
  EXPECT_TRUE(sameBits(x.to(kDevice).to(kOther), x));
  EXPECT_TRUE(sameBits(x.to(kDevice).to(at::kDouble), x.to(at::kDouble)));
  EXPECT_EQ(x.to(kDevice)[1][2].item<float>(), x[1][2].item<float>());
}

TEST_F(Simulated, OperatorsHaveTheBitsOfTheCpu) {
  const at::Tensor x = at::randn({4, 6}), w = at::randn({5, 6}), b = at::randn({5});
  const at::Tensor dx = x.to(kDevice), dw = w.to(kDevice), db = b.to(kDevice);
  EXPECT_TRUE(sameBits(at::linear(dx, dw, db), at::linear(x, w, b)));
  EXPECT_TRUE(sameBits(dx.softmax(1), x.softmax(1)));
  EXPECT_TRUE(sameBits(dx.narrow(1, 1, 3).sum({0}), x.narrow(1, 1, 3).sum({0})));
  EXPECT_TRUE(sameBits(dx.masked_select(dx > 0), x.masked_select(x > 0)));
  EXPECT_TRUE(sameBits(at::cat({dx, dx * 2}), at::cat({x, x * 2})));
  at::Tensor out = at::empty({0}, dx.options());
  at::add_out(out, dx, dx);
  EXPECT_TRUE(sameBits(out, x + x));
}

torch::nn::Sequential network() {
  torch::manual_seed(7);
  return torch::nn::Sequential(torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                               torch::nn::MaxPool2d(2), torch::nn::Flatten(), torch::nn::Linear(36, 8),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})), torch::nn::Linear(8, 3));
}

// torch::nn::Module::to() refuses devices outside of its tree.
void move(const at::Tensor& tensor, const at::Device& device) {
  const at::Tensor there = tensor.detach().to(device);
  tensor.unsafeGetTensorImpl()->_change_backend_component_keys(device);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(there.storage());
}

std::vector<at::Tensor> train(const at::Device& device) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  auto model = network();
  for (const at::Tensor& tensor : model->parameters()) move(tensor, device);
  for (const at::Tensor& tensor : model->buffers()) move(tensor, device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  torch::manual_seed(9);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({4, 1, 8, 8}), y = at::randint(0, 3, {4});
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(x.to(device)), y.to(device)).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : model->parameters()) values.push_back(tensor.detach().cpu());
  for (const at::Tensor& tensor : model->buffers()) values.push_back(tensor.cpu());
  at::set_num_threads(threads);
  return values;
}

TEST_F(Simulated, AStepOfTrainingHasTheBitsOfTheCpu) {
  const std::vector<at::Tensor> expected = train(at::kCPU);
  for (const uint64_t delays : {0, 3}) {
    simulated::setDelays(delays);
    const std::vector<at::Tensor> found = train(kDevice);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

TEST_F(Simulated, RandomNumbersFollowFromSeedAndOffset) {
  simulated::seedAll(5);
  const at::Tensor first = at::rand({10}, kDevice), second = at::rand({10}, kDevice);
  EXPECT_FALSE(sameBits(first, second));
  simulated::seedAll(5);
  EXPECT_TRUE(sameBits(at::rand({10}, kDevice), first));
  EXPECT_TRUE(sameBits(at::rand({10}, kDevice), second));
}

TEST_F(Simulated, EventsOrderStreams) {
  simulated::setDelays(1);
  const at::Tensor x = at::ones({1000}, kDevice);
  const c10::Stream other = newStream();
  c10::Event ready(kDevice.type());
  for (int i = 0; i < 20; ++i) {
    x.add_(1);
    ready.record(c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice));
    ready.block(other);
    {
      const c10::StreamGuard on(other);
      x.mul_(1);
      ready.record(other);
    }
    ready.block(c10::impl::VirtualGuardImpl(kDevice.type()).getStream(kDevice));
  }
  EXPECT_EQ(x[3].item<float>(), 21);
}

TEST_F(Simulated, AMissingWaitIsFoundEveryTime) {
  for (int run = 0; run < 20; ++run) {
    const at::Tensor x = at::ones({100}, kDevice);
    at::accelerator::synchronizeDevice(0);
    x.add_(1);
    const c10::Stream other = newStream();
    {
      const c10::StreamGuard on(other);
      x.mul_(2);
    }
    EXPECT_EQ(takeFindings().size(), 1u);
    at::accelerator::synchronizeDevice(0);
  }
}

TEST_F(Simulated, PinnedMemoryIsJudgedToo) {
  const at::Tensor x = at::ones({100}, kDevice), y = at::zeros({100}, kDevice);
  const at::Tensor home = at::empty({100}, at::TensorOptions().pinned_memory(true));
  at::accelerator::synchronizeDevice(0);
  const c10::Stream other = newStream();
  c10::Event stored(kDevice.type());
  for (const bool waits : {true, false}) {
    home.copy_(x, /*non_blocking=*/true);
    stored.record(at::accelerator::getCurrentStream(0));
    if (waits) stored.block(other);
    {
      const c10::StreamGuard on(other);
      y.copy_(home, /*non_blocking=*/true);
    }
    EXPECT_EQ(takeFindings().size(), waits ? 0u : 1u);
    at::accelerator::synchronizeDevice(0);
    if (waits) {
      EXPECT_EQ(y[3].item<float>(), 1);
    }
  }
}

TEST_F(Simulated, HostWaitsOrderToo) {
  const at::Tensor x = at::ones({100}, kDevice);
  x.add_(1);
  at::accelerator::getCurrentStream(0).synchronize();
  const c10::StreamGuard on(newStream());
  EXPECT_EQ((x * 2)[0].item<float>(), 4);
}

TEST_F(Simulated, MemoryThatIsFreedWhileAnotherStreamReadsItIsFound) {
  at::Tensor x = at::ones({100}, kDevice);
  at::accelerator::synchronizeDevice(0);
  const c10::Stream other = newStream();
  {
    const c10::StreamGuard on(other);
    static_cast<void>(x * 2);
  }
  x = at::Tensor();
  EXPECT_EQ(takeFindings().size(), 1u);
}

TEST_F(Simulated, RecordedStreamsKeepMemory) {
  at::Tensor x = at::ones({100}, kDevice);
  at::accelerator::synchronizeDevice(0);
  const c10::Stream other = newStream();
  {
    const c10::StreamGuard on(other);
    static_cast<void>(x * 2);
    x.record_stream(other);
  }
  x = at::Tensor();
}

TEST_F(Simulated, FreedMemoryIsPoisoned) {
  at::Tensor x = at::ones({64}, kDevice);
  const void* const address = x.storage().data();
  x = at::Tensor();
  x = at::empty({64}, kDevice);
  ASSERT_EQ(x.storage().data(), address);
  EXPECT_TRUE(x.isnan().all().item<bool>());
}

TEST_F(Simulated, PinnedMemoryIsCopiedLater) {
  const at::Tensor x = at::randn({64}), pinned = x.pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  const at::Tensor on_device = pinned.to(kDevice, /*non_blocking=*/true);
  at::Tensor back = at::empty({64}).pin_memory();
  back.copy_(on_device, /*non_blocking=*/true);
  at::accelerator::synchronizeDevice(0);
  EXPECT_TRUE(sameBits(back, x));
}

TEST_F(Simulated, WhatAKernelThrowsIsThrownByTheNextWait) {
  const at::Tensor x = at::ones({4}, kDevice), index = at::tensor({9}, at::kLong).to(kDevice);
  const at::Tensor picked = x.index_select(0, index);
  EXPECT_ANY_THROW(picked.cpu());
  EXPECT_NO_THROW(x.cpu());
}

using SimulatedDeathTest = Simulated;
#if __has_include(<ATen/accelerator/Graph.h>)
struct SimulatedGraph : Simulated {
  // On the thread's stream, which is not the default one.
  template <class Fn>
  static std::unique_ptr<at::accelerator::Graph> capture(const Fn& fn, c10::MempoolId_t pool = {0, 0}) {
    auto graph = std::make_unique<at::accelerator::Graph>();
    graph->capture_begin(pool);
    fn();
    graph->capture_end();
    return graph;
  }
  const c10::StreamGuard on_stream{newStream()};
};

TEST_F(SimulatedGraph, RunsNothingBeforeItIsReplayed) {
  simulated::setDelays(1);
  at::Tensor x = at::ones({300}, kDevice), y = at::zeros({300}, kDevice);
  const auto first = capture([&] { y.copy_((x * 2 + 1).relu()); });
  const auto second = capture([&] { x.add_((y - x).abs()); }, first->pool());
  EXPECT_TRUE(sameBits(y, at::zeros({300})));
  for (int i = 0; i < 3; ++i) {
    first->replay();
    second->replay();
  }
  EXPECT_TRUE(sameBits(x, at::full({300}, 15.0)));
}

TEST_F(SimulatedGraph, DrawsFromTheDefaultGenerator) {
  at::Tensor x = at::zeros({3000}, kDevice), y = at::zeros({5}, kDevice);
  const auto graph = capture([&] {
    x.bernoulli_(0.5);
    y.uniform_();
  });
  simulated::seedAll(7);
  std::vector<at::Tensor> found;
  for (int i = 0; i < 3; ++i) {
    graph->replay();
    found.push_back(x.cpu()), found.push_back(y.cpu());
  }
  simulated::seedAll(7);
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(sameBits(found[i], i % 2 == 0 ? x.bernoulli_(0.5) : y.uniform_()));
}

TEST_F(SimulatedGraph, OtherGeneratorsAndHostWaitsEndACapture) {
  const at::Tensor x = at::ones({10}, kDevice);
  at::Generator own = at::globalContext().defaultGenerator(kDevice).clone();
  at::accelerator::Graph graph;
  graph.capture_begin();
  EXPECT_ANY_THROW(x.bernoulli_(0.5, own));
  EXPECT_ANY_THROW(x.sum().item<float>());
  EXPECT_ANY_THROW(graph.capture_end());
  EXPECT_ANY_THROW(graph.replay());
  EXPECT_TRUE(sameBits(x.fill_(3), at::full({10}, 3.0)));
}

TEST_F(SimulatedGraph, AReplayOnMemoryThatWasFreedIsFound) {
  at::Tensor x = at::ones({100}, kDevice);
  const auto graph = capture([&] { x.add_(1); });
  graph->replay();
  EXPECT_EQ(takeFindings(), std::vector<std::string>{});
  x = at::Tensor();
  graph->replay();
  EXPECT_EQ(takeFindings().size(), 1u);
}

TEST_F(SimulatedGraph, ReplaysOnTwoStreamsThatDrawAndHaveNoOrderAreFound) {
  at::Tensor x = at::ones({100}, kDevice), y = at::ones({100}, kDevice);
  const auto first = capture([&] { x.bernoulli_(0.5); });
  at::accelerator::synchronizeDevice(0);
  const c10::StreamGuard on_other(newStream());
  const auto second = capture([&] { y.bernoulli_(0.5); });
  second->replay();
  {
    const c10::StreamGuard back(on_stream.current_stream());
    first->replay();
  }
  EXPECT_GE(takeFindings().size(), 1u);
  at::accelerator::synchronizeDevice(0);
}
#endif

TEST_F(SimulatedDeathTest, AHostThatTouchesMemoryOfADeviceEnds) {
  const at::Tensor x = at::ones({4}, kDevice);
  EXPECT_DEATH(std::memset(x.mutable_data_ptr(), 0, 4), "the host touched memory of a device");
}

}  // namespace
