// Memory, bindings, failures and threads of the CPU backend.
#include <future>
#include <thread>

#include <ATen/Parallel.h>

#include "harness.h"
#include "runtime/runtime.h"

namespace abele::device::testing {
namespace {

const exe::ExternalKind kBuffer = exe::ExternalKind::kBuffer;

TEST(Backend, InputsAreRowsAndFramesAreARing) {
  Program p(/*micro_batches=*/4, /*frames=*/2);
  const int32_t in = p.input(f32({2, 3})), doubled = p.value(f32({2, 3})), last_row = p.viewOf(in, 12, f32({3}));
  const int32_t sum = p.value(f32({2, 3}));
  p.op("aten::add.Tensor", {Arg::id(in), Arg::id(in), Arg::integer(1)}, {doubled});
  p.op("aten::add.Tensor", {Arg::id(doubled), Arg::id(last_row), Arg::integer(1)}, {sum});
  p.emit(sum);
  Runner runner(p);
  const at::Tensor x = at::randn({8, 3});
  const auto check = [&](const at::Tensor& input) {
    const auto result = runner.step({input});
    for (int k = 0; k < 4; ++k) {
      const at::Tensor rows = input.narrow(0, 2 * k, 2);
      EXPECT_TRUE(sameBits(result[0][k], rows + rows + rows[1]));
    }
  };
  check(x);
  check(x * 2);
  check(at::randn({3, 8}).t());  // laid out otherwise than compiled
  EXPECT_EQ(runner.backend().allocatedBytes(0), 2 * 128);
  EXPECT_EQ(runner.backend().allocatedBytes(0), exe::peakBytes(p.executable, 0));
}

TEST(Backend, WrongInputsAreRefused) {
  Program p(2);
  p.input(f32({2, 3}));
  Runner runner(p);
  EXPECT_THROW(runner.backend().bindInputs({at::zeros({6, 3})}), UserError);
  EXPECT_THROW(runner.backend().bindInputs({at::zeros({4, 2})}), UserError);
  EXPECT_THROW(runner.backend().bindInputs({at::zeros({4, 3}, at::kDouble)}), UserError);
  EXPECT_THROW(runner.backend().bindInputs({}), UserError);
  runner.backend().bindInputs({at::zeros({4, 3})});
}

TEST(Backend, UnboundOutputsAreSkippedAndSumsAdd) {
  Program p(3);
  const int32_t in = p.input(f32({1, 2}));
  p.emit(in);
  p.op("abele::emit", {Arg::id(p.output(f32({1, 2}))), Arg::id(in)});
  Runner runner(p);
  const at::Tensor x = at::randn({3, 2}), last = at::zeros({1, 2}), sum = at::full({1, 2}, 7.0);
  runner.stepInto({x}, {{at::Tensor(), at::Tensor(), last}, {sum, sum, sum}});
  EXPECT_TRUE(sameBits(last, x.narrow(0, 2, 1)));
  EXPECT_TRUE(sameBits(sum, x.narrow(0, 0, 1) + x.narrow(0, 1, 1) + x.narrow(0, 2, 1)));
}

TEST(Backend, UploadAndDownloadAnyLayout) {
  Program p;
  p.external(f32({3, 4}), exe::ExternalKind::kParameter);
  p.external(f32({2}), exe::ExternalKind::kState, 0.5);
  Runner runner(p);
  const at::Tensor host = at::randn({4, 3}).t().set_requires_grad(true);
  runner.backend().upload(0, host);
  at::Tensor back = at::empty({4, 3}).t().set_requires_grad(true);
  runner.backend().download(0, back);
  EXPECT_TRUE(sameBits(back, host));
  EXPECT_TRUE(sameBits(runner.backend().external(1), at::full({2}, 0.5)));
  for (const at::Tensor& wrong : {at::zeros({4, 3}), at::zeros({3, 4}, at::kDouble)}) {
    try {
      runner.backend().upload(0, wrong);
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ErrorCode::E0704);
    }
  }
}

TEST(Backend, ExternalTensorOutlivesTheBackend) {
  Program p;
  p.external(f32({2}), exe::ExternalKind::kState, 3);
  at::Tensor kept;
  { kept = Runner(p).backend().external(0); }
  EXPECT_TRUE(sameBits(kept * 2, at::full({2}, 6.0)));
}

TEST(Backend, AFailedStepPutsBuffersBackAndTheNextOneWorks) {
  Program p;
  const int32_t in = p.input(f32({2})), buffer = p.external(f32({2}), kBuffer),
                index = p.input(contiguousType(DType::kInt64, {1}));
  const int32_t picked = p.value(f32({1}));
  p.op("aten::add_.Tensor", {Arg::id(buffer), Arg::id(in), Arg::integer(1)}).writes = {buffer};
  p.op("aten::index_select", {Arg::id(buffer), Arg::integer(0), Arg::id(index)}, {picked});
  p.emit(picked);
  Runner runner(p);
  runner.backend().upload(0, at::ones({2}));
  const at::Tensor x = at::ones({2}), good = at::tensor({1}, at::kLong), bad = at::tensor({9}, at::kLong);
  EXPECT_TRUE(sameBits(runner.step({x, good})[0][0], at::full({1}, 2.0)));
  EXPECT_ANY_THROW(runner.step({x, bad}));
  EXPECT_TRUE(sameBits(runner.backend().external(0), at::full({2}, 2.0)));
  EXPECT_TRUE(sameBits(runner.step({x, good})[0][0], at::full({1}, 3.0)));
}

TEST(Backend, WorkerThreadsDoNotChangeOthersThreadCounts) {
  const int before = at::get_num_threads();
  Program p;
  const auto backend = CpuBackend::create(p.executable, {.threads_per_device = before + 2});
  const auto device = backend->makeDevice(0);
  int inside = 0, later = 0;
  std::thread([&] {
    device->attach();
    inside = at::get_num_threads();
    std::thread([&] { later = at::get_num_threads(); }).join();
  }).join();
  EXPECT_EQ(inside, before + 2);
  EXPECT_EQ(later, before);
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Backend, RunsOnAnotherThreadWithoutAutograd) {
  Program p;
  const int32_t in = p.input(f32({2, 2})), out = p.value(f32({2, 2}));
  p.op("aten::mm", {Arg::id(in), Arg::id(in)}, {out});
  p.emit(out);
  Runner runner(p);
  const at::Tensor x = at::randn({2, 2}).set_requires_grad(true);
  const auto result = std::async(std::launch::async, [&] { return runner.step({x}); }).get();
  EXPECT_TRUE(sameBits(result[0][0], at::mm(x, x)));
  EXPECT_FALSE(result[0][0].requires_grad());
}

// Two workers, a value of the first read by the second out of a ring of two frames.
TEST(Backend, RunsUnderTheRuntime) {
  constexpr int32_t kMicroBatches = 6;
  Program p(kMicroBatches, /*frames=*/2);
  const int32_t in = p.input(f32({4, 4})), product = p.value(f32({4, 4}));
  p.executable.segments[1].direction = exe::Direction::kForward;
  p.op("aten::mm", {Arg::id(in), Arg::id(in)}, {product});
  p.op("abele::emit", {Arg::id(p.output(f32({4, 4}))), Arg::id(product)}, {}, 1);
  p.executable.workers.assign(2, {});
  for (int32_t k = 0; k < kMicroBatches; ++k) {
    p.executable.workers[0].actions.push_back({0, k, {}});
    if (k >= 2) p.executable.workers[0].actions.back().waits.push_back({1, k - 1});
    p.executable.workers[1].actions.push_back({1, k, {{0, k + 1}}});
  }
  const auto backend = CpuBackend::create(p.executable, {});
  runtime::Runtime runtime(p.executable, *backend);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = at::randn({4 * kMicroBatches, 4});
    std::vector<at::Tensor> results;
    for (int k = 0; k < kMicroBatches; ++k) results.push_back(at::empty({4, 4}));
    backend->bindInputs({x});
    backend->bindOutputs({results});
    runtime.run();
    for (int k = 0; k < kMicroBatches; ++k)
      EXPECT_TRUE(sameBits(results[k], at::mm(x.narrow(0, 4 * k, 4), x.narrow(0, 4 * k, 4))));
  }
}

}  // namespace
}  // namespace abele::device::testing
