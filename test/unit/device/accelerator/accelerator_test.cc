// Properties that the contract's tests do not cover: streams, events, the device's own random numbers, late errors.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include "../programs.h"
#include "runtime/runtime.h"
#include "simulated_accelerator/simulated.h"

namespace abele::device::testing {
namespace {

std::unique_ptr<DeviceBackend> load(const Program& program, const DeviceOptions& options = {}) {
  return makeBackend("accelerator", program.executable, options);
}

struct Runner : RunnerOf<DeviceBackend> {
  explicit Runner(const Program& program, const DeviceOptions& options = {})
      : RunnerOf(program, load(program, options)) {}
};

struct Accelerator : ::testing::Test {
  void SetUp() override {
    simulated::setDelays(2);
    simulated::takeFindings();
  }
  void TearDown() override { EXPECT_EQ(simulated::takeFindings(), std::vector<std::string>{}); }
};

ErrorCode codeOfLoading(const std::string& device) {
  try {
    const Program p;
    load(p, {.accelerator = device});
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("4 of simulated"), std::string::npos) << error.what();
    return error.code();
  }
  return ErrorCode::E0601;
}

TEST_F(Accelerator, ADeviceThatIsNotThereIsRefusedWithWhatIs) {
  EXPECT_EQ(codeOfLoading("cuda:0"), ErrorCode::E0702);
  EXPECT_EQ(codeOfLoading("simulated:4"), ErrorCode::E0702);
}

TEST_F(Accelerator, MemoryIsOnTheDeviceThatWasAskedFor) {
  Program p;
  p.external(f32({1 << 20}), exe::ExternalKind::kParameter);
  const auto used = [](int device) {
    return at::getDeviceAllocator(c10::DeviceType::PrivateUse1)->getMemoryInfo(static_cast<c10::DeviceIndex>(device));
  };
  const auto before = used(3), others = used(0);
  const auto backend = load(p, {.accelerator = "simulated:3"});
  EXPECT_GE(before.first - used(3).first, size_t{4} << 20);
  EXPECT_EQ(others.first, used(0).first);
}

// Two workers over a ring of two frames. Their streams exchange values and frames.
Program pipeline(int32_t micro_batches, bool off_chip = false) {
  Program p(micro_batches, /*frames=*/2);
  p.executable.groups[p.values].off_chip = off_chip;
  const int32_t in = p.input(f32({4, 4})), product = p.value(f32({4, 4}));
  p.executable.segments[1].direction = exe::Direction::kForward;
  p.op("aten::mm", {Arg::id(in), Arg::id(in)}, {product});
  p.op("abele::emit", {Arg::id(p.output(f32({4, 4}))), Arg::id(product)}, {}, 1);
  p.executable.workers.assign(2, {});
  for (int32_t k = 0; k < micro_batches; ++k) {
    p.executable.workers[0].actions.push_back({0, k, {}});
    if (k >= 2) p.executable.workers[0].actions.back().waits.push_back({1, k - 1});
    p.executable.workers[1].actions.push_back({1, k, {{0, k + 1}}});
  }
  return p;
}

void runPipeline(const Program& p, DeviceBackend& backend, runtime::Runtime& runtime) {
  const int64_t micro_batches = p.executable.micro_batches;
  const at::Tensor x = at::randn({4 * micro_batches, 4});
  std::vector<at::Tensor> results;
  for (int k = 0; k < micro_batches; ++k) results.push_back(at::empty({4, 4}));
  backend.bindInputs({x});
  backend.bindOutputs({results});
  runtime.run();
  for (int k = 0; k < micro_batches; ++k)
    EXPECT_TRUE(sameBits(results[k], at::mm(x.narrow(0, 4 * k, 4), x.narrow(0, 4 * k, 4))));
}

TEST_F(Accelerator, EventsOrderTheStreamsOfWorkers) {
  for (const bool off_chip : {false, true}) {
    SCOPED_TRACE(off_chip);
    const Program p = pipeline(8, off_chip);
    const auto backend = load(p);
    runtime::Runtime runtime(p.executable, *backend);
    for (int step = 0; step < 5; ++step) runPipeline(p, *backend, runtime);
  }
}

TEST_F(Accelerator, TheHostWaitsNoMoreOftenForMoreMicroBatches) {
  for (const bool off_chip : {false, true}) {
    SCOPED_TRACE(off_chip);
    int64_t waits[2] = {};
    for (const int i : {0, 1}) {
      const Program p = pipeline(i == 0 ? 4 : 16, off_chip);
      const auto backend = load(p);
      runtime::Runtime runtime(p.executable, *backend);
      runPipeline(p, *backend, runtime);
      const int64_t before = simulated::numHostWaits();
      runPipeline(p, *backend, runtime);
      waits[i] = simulated::numHostWaits() - before;
    }
    EXPECT_EQ(waits[0], waits[1]);
  }
}

TEST_F(Accelerator, OffChipFramesAreOnTheDeviceForAFewActionsOnly) {
  const Program p = pipeline(8, /*off_chip=*/true);
  const auto backend = load(p);
  const int64_t frame_bytes = p.executable.groups[p.values].frame_bytes;
  EXPECT_EQ(backend->allocatedBytes(0), 0);
  for (const int32_t worker : {0, 1}) {
    EXPECT_GE(backend->residentBytes(worker), frame_bytes);
    EXPECT_LE(backend->residentBytes(worker), 2 * frame_bytes);  // this action's and the next one's
  }
}

TEST_F(Accelerator, AWaitThatTheExecutableLacksIsFound) {
  Program p = pipeline(8);
  for (exe::Action& action : p.executable.workers[1].actions) action.waits.clear();
  const auto backend = load(p);
  // Runs one worker after the other on this thread: the host's order is right, the streams' order is not.
  const auto first = backend->makeDevice(0), second = backend->makeDevice(1);
  std::vector<at::Tensor> results(8);
  backend->bindInputs({at::randn({32, 4})});
  backend->bindOutputs({results = {at::empty({4, 4})}});
  backend->begin(0);
  first->run({0, 0, 0, 0, 0});
  second->run({1, 1, 0, 0, 0});
  backend->finish(true);
  EXPECT_EQ(simulated::takeFindings().size(), 1u);
}

TEST_F(Accelerator, RandomNumbersAreThoseOfEagerOnTheDevice) {
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);
  Program p(2);
  const int32_t mask = p.value(f32({4, 5}));
  exe::Instruction& draw = p.op("aten::bernoulli_.float", {Arg::id(mask), Arg::real(0.5), randomStream()}, {-1});
  draw.writes = {mask};
  draw.random_draws = 4, draw.random_offset = 0;
  p.executable.random_draws = 4;
  p.emit(mask);
  Runner runner(p);
  at::Generator eager = runner.backend().newGenerator(99);
  runner.backend().setGenerator(eager);
  for (int step = 0; step < 3; ++step) {
    const auto result = runner.step({});
    for (int k = 0; k < 2; ++k)
      EXPECT_TRUE(sameBits(result[0][k], at::empty({4, 5}, device).bernoulli_(0.5, eager).cpu()));
  }
  EXPECT_TRUE(at::equal(runner.backend().generator().get_state(), eager.get_state()));
}

TEST_F(Accelerator, OperatorsWithoutAGeneratorDrawFromTheStepsNumbers) {
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);
  Program p;
  const int32_t in = p.input(f32({50})), out = p.value(f32({50}));
  exe::Instruction& drop = p.op("aten::native_dropout", {Arg::id(in), Arg::real(0.5), Arg::boolean(true)}, {out, -1});
  drop.random_draws = 4, drop.random_offset = 0;
  p.executable.random_draws = 4;
  p.emit(out);
  Runner runner(p);
  runner.backend().setGenerator(runner.backend().newGenerator(5));
  const at::Tensor before = at::globalContext().defaultGenerator(device).get_state(), x = at::randn({50});
  const at::Tensor found = runner.step({x})[0][0];
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(device).get_state(), before));
  simulated::seedAll(5);
  EXPECT_TRUE(sameBits(found, std::get<0>(at::native_dropout(x.to(device), 0.5, true)).cpu()));
}

// A kernel fails after the host has moved on. Then no weight has changed.
TEST_F(Accelerator, WhatAKernelThrowsStopsTheUpdates) {
  Program p;
  const int32_t in = p.input(f32({4})), index = p.input(contiguousType(DType::kInt64, {4}));
  const int32_t weight = p.external(f32({4}), exe::ExternalKind::kParameter);
  const int32_t sum = p.external(f32({4}), exe::ExternalKind::kAccumulator), picked = p.value(f32({4}));
  p.op("aten::index_select", {Arg::id(in), Arg::integer(0), Arg::id(index)}, {picked});
  p.op("abele::accumulate", {Arg::id(sum), Arg::id(picked)}).writes = {sum};
  p.update("abele::sgd_", {Arg::id(weight), Arg::id(sum), Arg::none(), Arg::integer(0)}).writes = {weight};
  p.executable.segments[1].direction = exe::Direction::kUpdate;
  Runner runner(p);
  runner.backend().upload(0, at::ones({4}));
  runner.backend().setHyper(0, "lr", 1);
  EXPECT_ANY_THROW(runner.step({at::ones({4}), at::full({4}, 9, at::kLong)}));
  EXPECT_TRUE(sameBits(runner.backend().value(0), at::ones({4})));
  runner.step({at::ones({4}), at::full({4}, 2, at::kLong)});
  EXPECT_TRUE(sameBits(runner.backend().value(0), at::zeros({4})));
}

// Two stages on their own devices and the link between them. The second stage looks up the first one's result. The
// first one's weight is updated after both.
struct TwoDevices : Program {
  int32_t in, index, weight, sum;

  explicit TwoDevices(int64_t micro_batches, bool off_chip = false) : Program(micro_batches, /*frames=*/2) {
    const int32_t arrived = group(exe::GroupKind::kStash, 2, "receive"),
                  other = group(exe::GroupKind::kStash, 2, "other");
    executable.groups[values].off_chip = executable.groups[arrived].off_chip = off_chip;
    in = input(f32({4})), index = input(contiguousType(DType::kInt64, {4}));
    weight = external(f32({4}), exe::ExternalKind::kParameter);
    sum = external(f32({4}), exe::ExternalKind::kAccumulator);
    const int32_t made = value(f32({4})), received = slot(arrived, f32({4})), picked = slot(other, f32({4}));
    executable.groups[weights].worker = executable.groups[values].worker = 0;
    executable.groups[arrived].worker = executable.groups[other].worker = 1;
    executable.segments.push_back({1, exe::Direction::kForward, "fwd/1", {}});
    executable.segments.push_back({1, exe::Direction::kForward, "in/fwd/1/space0", {}});
    executable.segments[1].direction = exe::Direction::kUpdate;
    op("aten::neg", {Arg::id(in)}, {made});
    op("abele::accumulate", {Arg::id(sum), Arg::id(made)}).writes = {sum};
    op("abele::transfer", {Arg::id(received), Arg::id(made)}, {}, 3).writes = {received};
    op("aten::index_select", {Arg::id(received), Arg::integer(0), Arg::id(index)}, {picked}, 2);
    op("abele::emit", {Arg::id(output(f32({4}))), Arg::id(picked)}, {}, 2);
    update("abele::sgd_", {Arg::id(weight), Arg::id(sum), Arg::none(), Arg::integer(0)}).writes = {weight};
    exe::WorkerProgram first, second, link;
    second.device = second.space = link.device = link.space = 1;
    link.from = 0;
    for (int32_t k = 0; k < micro_batches; ++k) {
      first.actions.push_back({0, k, {}});
      link.actions.push_back({3, k, {{0, k + 1}}});
      second.actions.push_back({2, k, {{3, k + 1}}});
      if (k < 2) continue;  // the frames of the ring
      first.actions.back().waits.push_back({3, k - 1});
      link.actions.back().waits.push_back({2, k - 1});
    }
    first.actions.push_back({1, static_cast<int32_t>(micro_batches) - 1, {{2, micro_batches}}});
    executable.workers = {first, second, link};
  }
};

std::vector<at::Tensor> runOn(const TwoDevices& p, DeviceBackend& backend, runtime::Runtime& runtime,
                              const at::Tensor& x, const at::Tensor& index) {
  std::vector<at::Tensor> results;
  for (int64_t k = 0; k < p.executable.micro_batches; ++k) results.push_back(at::empty({4}));
  backend.bindInputs({x, index});
  backend.bindOutputs({results});
  runtime.run();
  return results;
}

TEST_F(Accelerator, ValuesGoFromOneDeviceToAnother) {
  constexpr int64_t kCount = 8;
  const TwoDevices p(kCount);
  for (const char* devices : {"simulated:0,simulated:1", "simulated:2,cpu", "cpu,simulated:3", "simulated:1"}) {
    SCOPED_TRACE(devices);
    const auto backend = load(p, {.accelerator = devices});
    backend->setHyper(0, "lr", 1);
    runtime::Runtime runtime(p.executable, *backend);
    at::Tensor weight = at::zeros({4});
    for (int step = 0; step < 5; ++step) {
      const at::Tensor x = at::randn({4 * kCount}), index = at::randint(4, {4 * kCount}, at::kLong);
      const std::vector<at::Tensor> results = runOn(p, *backend, runtime, x, index);
      at::Tensor sum = at::zeros({4});
      for (int64_t k = 0; k < kCount; ++k) {
        const at::Tensor made = x.narrow(0, 4 * k, 4).neg();
        EXPECT_TRUE(sameBits(results[k], made.index_select(0, index.narrow(0, 4 * k, 4))));
        sum.add_(made);
      }
      weight.sub_(sum);
    }
    EXPECT_TRUE(sameBits(backend->value(0), weight));
  }
}

// Values that both stages keep are in the host's memory, and the link copies within that memory.
TEST_F(Accelerator, TheHostWaitsForNoCopyBetweenOffChipFrames) {
  int64_t waits[2] = {};
  for (const int i : {0, 1}) {
    const int64_t count = i == 0 ? 4 : 16;
    const TwoDevices p(count, /*off_chip=*/true);
    const auto backend = load(p, {.accelerator = "simulated:0,simulated:1"});
    backend->setHyper(0, "lr", 1);
    runtime::Runtime runtime(p.executable, *backend);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = at::randn({4 * count}), index = at::randint(4, {4 * count}, at::kLong);
      const int64_t before = simulated::numHostWaits();
      const std::vector<at::Tensor> results = runOn(p, *backend, runtime, x, index);
      waits[i] = simulated::numHostWaits() - before;
      for (int64_t k = 0; k < count; ++k)
        EXPECT_TRUE(sameBits(results[k], x.narrow(0, 4 * k, 4).neg().index_select(0, index.narrow(0, 4 * k, 4))));
    }
    constexpr int32_t kLink = 2;
    EXPECT_EQ(backend->residentBytes(kLink), backend->allocatedBytes(kLink) + 16);  // that it passes through
  }
  EXPECT_EQ(waits[0], waits[1]);
}

TEST_F(Accelerator, OffChipFramesInAFileAreCopiedByTheHost) {
  const TwoDevices p(6, /*off_chip=*/true);
  const auto backend = load(p, {.off_chip_memory_limit = 0, .accelerator = "simulated:0,simulated:1"});
  runtime::Runtime runtime(p.executable, *backend);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({24}), index = at::randint(4, {24}, at::kLong);
    const std::vector<at::Tensor> results = runOn(p, *backend, runtime, x, index);
    for (int64_t k = 0; k < 6; ++k)
      EXPECT_TRUE(sameBits(results[k], x.narrow(0, 4 * k, 4).neg().index_select(0, index.narrow(0, 4 * k, 4))));
  }
  EXPECT_GT(backend->fileBytes(), 0);
}

// Rows of later micro-batches are copied while the device works on those before, not when a step begins.
TEST_F(Accelerator, InputsAreCopiedWithTheMicroBatchThatReadsThem) {
  constexpr int kCount = 4;
  Program p(kCount);
  const int32_t in = p.input(f32({4})), out = p.value(f32({4}));
  p.op("aten::neg", {Arg::id(in)}, {out});
  p.emit(out);
  const auto backend = load(p, {.device_graphs = false});
  const auto device = backend->makeDevice(0);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({4 * kCount});
    std::vector<at::Tensor> results;
    for (int k = 0; k < kCount; ++k) results.push_back(at::empty({4}));
    const int64_t begin = simulated::numJobs(), waits = simulated::numHostWaits();
    backend->bindInputs({x});
    backend->bindOutputs({results});
    backend->begin(step);
    if (step > 0) {
      EXPECT_EQ(simulated::numJobs(), begin);  // memory is there
    }
    for (int k = 0; k < kCount; ++k) {
      const int64_t before = simulated::numJobs();
      device->run({0, 0, k, k, step});
      if (step > 0) {
        EXPECT_EQ(simulated::numJobs() - before, 3);  // the copy, neg, the result
      }
    }
    EXPECT_EQ(simulated::numHostWaits(), waits);
    backend->finish(true);
    for (int k = 0; k < kCount; ++k) EXPECT_TRUE(sameBits(results[k], x.narrow(0, 4 * k, 4).neg()));
  }
}

TEST_F(Accelerator, CallersChangeTheirTensorsBetweenSteps) {
  constexpr int64_t kCount = 5;
  const TwoDevices p(kCount);
  for (const char* devices : {"simulated:0,simulated:1", "simulated:2"}) {
    const auto backend = load(p, {.accelerator = devices});
    runtime::Runtime runtime(p.executable, *backend);
    const at::Tensor x = at::empty({4 * kCount}), index = at::empty({4 * kCount}, at::kLong);
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      simulated::setDelays(seed);
      x.normal_();
      index.random_(0, 4);
      const std::vector<at::Tensor> results = runOn(p, *backend, runtime, x, index);
      for (int64_t k = 0; k < kCount; ++k)
        ASSERT_TRUE(sameBits(results[k], x.narrow(0, 4 * k, 4).neg().index_select(0, index.narrow(0, 4 * k, 4))))
            << devices << ", delays of " << seed;
    }
  }
}

TEST_F(Accelerator, MemoryOfASpaceIsOnItsDevice) {
  TwoDevices p(1);
  const int32_t large = p.group(exe::GroupKind::kStash, 1, "large");
  p.executable.groups[large].worker = 1;
  p.slot(large, f32({1 << 20}));
  const auto used = [](int device) {
    return at::getDeviceAllocator(c10::DeviceType::PrivateUse1)->getMemoryInfo(static_cast<c10::DeviceIndex>(device));
  };
  const size_t before[] = {used(1).first, used(2).first};
  const auto backend = load(p, {.accelerator = "simulated:1,simulated:2"});
  EXPECT_LT(before[0] - used(1).first, size_t{1} << 20);
  EXPECT_GE(before[1] - used(2).first, size_t{4} << 20);
  EXPECT_EQ(backend->allocatedBytes(1), exe::residentBytes(p.executable, 1));
}

// An error of a kernel on one device stops updates on the others.
TEST_F(Accelerator, WhatAKernelOfAnotherDeviceThrowsStopsTheUpdates) {
  const TwoDevices p(2);
  const auto backend = load(p, {.accelerator = "simulated:0,simulated:1"});
  backend->setHyper(0, "lr", 1);
  backend->upload(0, at::ones({4}));
  runtime::Runtime runtime(p.executable, *backend);
  EXPECT_ANY_THROW(runOn(p, *backend, runtime, at::ones({8}), at::full({8}, 9, at::kLong)));
  EXPECT_TRUE(sameBits(backend->value(0), at::ones({4})));
  runOn(p, *backend, runtime, at::ones({8}), at::full({8}, 2, at::kLong));
  EXPECT_TRUE(sameBits(backend->value(0), at::full({4}, 3.0)));
}

TEST_F(Accelerator, InputsAndResultsMayBeOnADevice) {
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);
  Program p;
  const int32_t in = p.input(f32({1000})), out = p.value(f32({1000}));
  p.op("aten::neg", {Arg::id(in)}, {out});
  p.emit(out);
  Runner runner(p);
  const at::Tensor x = at::randn({1000}, device), y = at::empty({1000}, device);
  runner.stepInto({x.add_(1)}, {{y}});
  EXPECT_TRUE(sameBits(y.cpu(), x.neg().cpu()));
}

#if __has_include(<ATen/accelerator/Graph.h>)
// Counts the graphs that a test made.
struct Graphs : Accelerator {
  int64_t captures() const { return simulated::numCaptures() - captures_; }
  int64_t replays() const { return simulated::numReplays() - replays_; }

 private:
  int64_t captures_ = simulated::numCaptures(), replays_ = simulated::numReplays();
};

// Adds up results of the micro-batches, over a ring of two frames.
Program summing(int64_t micro_batches) {
  Program p(micro_batches, /*frames=*/2);
  const int32_t in = p.input(f32({4})), made = p.value(f32({4})), again = p.value(f32({4}));
  const int32_t sum = p.external(f32({4}), exe::ExternalKind::kAccumulator);
  p.executable.segments[1].direction = exe::Direction::kUpdate;
  p.op("aten::neg", {Arg::id(in)}, {made});
  p.op("aten::exp", {Arg::id(made)}, {again});
  p.op("abele::accumulate", {Arg::id(sum), Arg::id(again)}).writes = {sum};
  p.emit(again);
  return p;
}

TEST_F(Graphs, SegmentsAreReplayedFromTheSecondTimeOn) {
  constexpr int64_t kCount = 4, kSteps = 5;
  const Program p = summing(kCount);
  Runner runner(p);
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor x = at::randn({4 * kCount});
    const auto results = runner.step({x});
    at::Tensor sum = at::zeros({4});
    for (int64_t k = 0; k < kCount; ++k) {
      const at::Tensor made = x.narrow(0, 4 * k, 4).neg().exp();
      EXPECT_TRUE(sameBits(results[0][k], made));
      k == 0 ? sum.copy_(made) : sum.add_(made);
    }
    EXPECT_TRUE(sameBits(runner.backend().value(0), sum));
  }
  EXPECT_EQ(captures(), kCount);
  EXPECT_EQ(replays(), (kSteps - 1) * kCount);
  Runner other(p, {.device_graphs = false});
  for (int step = 0; step < 3; ++step) other.step({at::randn({4 * kCount})});
  EXPECT_EQ(captures(), kCount);
}

TEST_F(Graphs, ResultsMayBeElsewhereOrNotWanted) {
  const Program p = summing(2);
  Runner runner(p);
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = at::randn({8}), one = at::empty({4}), two = at::empty({4});
    const at::Tensor first = x.narrow(0, 0, 4).neg().exp(), second = x.narrow(0, 4, 4).neg().exp();
    runner.stepInto({x}, {{one, two}});
    EXPECT_TRUE(sameBits(one, first) && sameBits(two, second));
    runner.stepInto({x}, {{at::Tensor(), two}});
    EXPECT_TRUE(sameBits(two, second));
    runner.stepInto({x}, {{one, one}});
    EXPECT_TRUE(sameBits(one, first + second));
    runner.stepInto({x}, {{}});
  }
  EXPECT_EQ(captures(), 2 + 4);  // the first micro-batch's and the second one's
}

// Draws in the forward pass, then makes the second draw again, as recomputation does.
TEST_F(Graphs, RandomNumbersAreThoseOfEagerOnTheDevice) {
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);
  Program p(2);
  const auto draw = [&](int64_t offset, double share) {
    const int32_t mask = p.value(f32({4, 5}));
    exe::Instruction& op = p.op("aten::bernoulli_.float", {Arg::id(mask), Arg::real(share), randomStream()}, {-1});
    op.writes = {mask};
    op.random_draws = 4, op.random_offset = offset;
    p.emit(mask);
  };
  draw(0, 0.5), draw(4, 0.3), draw(4, 0.3);
  const int32_t in = p.input(f32({50})), out = p.value(f32({50}));
  exe::Instruction& drop = p.op("aten::native_dropout", {Arg::id(in), Arg::real(0.5), Arg::boolean(true)}, {out, -1});
  drop.random_draws = 4, drop.random_offset = 8;
  p.executable.random_draws = 12;
  p.emit(out);
  Runner runner(p);
  runner.backend().setGenerator(runner.backend().newGenerator(99));
  simulated::seedAll(11);
  const at::Tensor before = at::globalContext().defaultGenerator(device).get_state(), x = at::randn({100});
  std::vector<std::vector<std::vector<at::Tensor>>> results;
  for (int step = 0; step < 4; ++step) results.push_back(runner.step({x}));
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(device).get_state(), before));
  EXPECT_EQ(captures(), 2 * 2);
  simulated::seedAll(99);
  for (const auto& result : results)
    for (int k = 0; k < 2; ++k) {
      EXPECT_TRUE(sameBits(result[0][k], at::empty({4, 5}, device).bernoulli_(0.5).cpu()));
      const at::Tensor second = at::empty({4, 5}, device).bernoulli_(0.3).cpu();
      EXPECT_TRUE(sameBits(result[1][k], second) && sameBits(result[2][k], second));
      const at::Tensor dropped = std::get<0>(at::native_dropout(x.narrow(0, 50 * k, 50).to(device), 0.5, true));
      EXPECT_TRUE(sameBits(result[3][k], dropped.cpu()));
    }
}

// The host waits for the shape of masked_select's result.
TEST_F(Graphs, WhatCannotBeCapturedRunsEachTime) {
  Program p;
  const int32_t in = p.input(f32({4})), mask = p.input(contiguousType(DType::kBool, {4}));
  const int32_t a = p.value(f32({4})), b = p.value(f32({4})), picked = p.value(f32({2})), c = p.value(f32({2}));
  p.op("aten::neg", {Arg::id(in)}, {a});
  p.op("aten::exp", {Arg::id(a)}, {b});
  p.op("aten::masked_select", {Arg::id(b), Arg::id(mask)}, {picked});
  p.op("aten::neg", {Arg::id(picked)}, {c});
  p.emit(c);
  Runner runner(p);
  const at::Tensor chosen = at::tensor({0, 1, 1, 0}).to(at::kBool);
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = at::randn({4});
    EXPECT_TRUE(sameBits(runner.step({x, chosen})[0][0], x.neg().exp().masked_select(chosen).neg()));
  }
  EXPECT_EQ(captures(), 2);  // before and after it
  EXPECT_EQ(replays(), 2 * 3);
}

// Kernels allocate memory beyond the plan. Allocations of graphs stay in their pool.
TEST_F(Graphs, PoolsAreCounted) {
  Program p(2);
  const int32_t in = p.input(f32({500})), first = p.value(f32({500})), out = p.value(f32({500}));
  p.op("aten::neg", {Arg::id(in)}, {first});
  exe::Instruction& drop =
      p.op("aten::native_dropout", {Arg::id(first), Arg::real(0.5), Arg::boolean(true)}, {out, -1});
  drop.random_draws = 4, drop.random_offset = 0;
  p.executable.random_draws = 4;
  p.emit(out);
  for (const bool has_graphs : {false, true}) {
    Runner runner(p, {.device_graphs = has_graphs});
    const auto beside = [&] { return runner.backend().residentBytes(0) - runner.backend().allocatedBytes(0); };
    runner.step({at::randn({1000})});
    EXPECT_EQ(beside(), 0);
    for (int step = 0; step < 3; ++step) runner.step({at::randn({1000})});
    const int64_t bytes = beside();
    EXPECT_EQ(bytes > 0, has_graphs);
    for (int step = 0; step < 3; ++step) runner.step({at::randn({1000})});
    EXPECT_EQ(beside(), bytes);
  }
}

TEST_F(Graphs, WhatAKernelOfAReplayThrowsStopsTheUpdates) {
  const TwoDevices p(2);
  const auto backend = load(p, {.accelerator = "simulated:0,simulated:1"});
  backend->setHyper(0, "lr", 1);
  runtime::Runtime runtime(p.executable, *backend);
  for (int step = 0; step < 3; ++step) runOn(p, *backend, runtime, at::ones({8}), at::full({8}, 2, at::kLong));
  const at::Tensor before = backend->value(0);
  EXPECT_GT(replays(), 0);
  EXPECT_ANY_THROW(runOn(p, *backend, runtime, at::ones({8}), at::full({8}, 9, at::kLong)));
  EXPECT_TRUE(sameBits(backend->value(0), before));
  runOn(p, *backend, runtime, at::ones({8}), at::full({8}, 2, at::kLong));
  EXPECT_TRUE(sameBits(backend->value(0), before + 2));
}
#endif

TEST_F(Accelerator, WhatItCannotDoYetIsRefused) {
  const auto codeOf = [](const DeviceOptions& options) {
    try {
      const Program p;
      load(p, options);
    } catch (const UserError& error) {
      return error.code();
    }
    return ErrorCode::E0601;
  };
  EXPECT_EQ(codeOf({.floating_point_exceptions = true}), ErrorCode::E0711);
  EXPECT_EQ(codeOf({.stochastic_rounding = true}), ErrorCode::E0711);
}

}  // namespace
}  // namespace abele::device::testing
