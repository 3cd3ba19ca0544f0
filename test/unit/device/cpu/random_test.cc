// Random operators draw the numbers that eager draws from one generator, for any order of the schedule.
#include <ATen/CPUGeneratorImpl.h>

#include "device/cpu/random_stream.h"
#include "harness.h"

namespace abele::device::testing {
namespace {

TEST(SkipDraws, EqualsDrawing) {
  for (const int64_t draws : {0, 1, 2, 622, 623, 624, 625, 1247, 1248, 1249, 5000}) {
    for (const int64_t before : {0, 1, 623, 624, 700}) {
      at::mt19937 drawn(17), skipped(17);
      for (int64_t i = 0; i < before; ++i) skipped(), drawn();
      for (int64_t i = 0; i < draws; ++i) drawn();
      skipDraws(skipped, draws);
      for (int i = 0; i < 1300; ++i) ASSERT_EQ(skipped(), drawn()) << draws << " after " << before << " at " << i;
    }
  }
}

// Two dropout masks per micro-batch, of 20 and 7 elements; bernoulli_ draws 2 numbers per element.
Program dropoutProgram(int64_t micro_batches) {
  Program p(micro_batches);
  p.executable.random_draws = 54;
  const int32_t first = p.value(f32({4, 5})), second = p.value(f32({7}));
  exe::Instruction& a = p.op("aten::bernoulli_.float", {Arg::id(first), Arg::real(0.5), randomStream()}, {-1});
  a.writes = {first};
  a.random_draws = 40, a.random_offset = 0;
  exe::Instruction& b = p.op("aten::bernoulli_.float", {Arg::id(second), Arg::real(0.3), randomStream()}, {-1});
  b.writes = {second};
  b.random_draws = 14, b.random_offset = 40;
  p.emit(first);
  p.emit(second);
  return p;
}

// Capture measures how many numbers the installed kernels draw. This test measures the same way.
int64_t drawsOf(int64_t elements) {
  at::Generator generator = at::detail::createCPUGenerator(1), twin = at::detail::createCPUGenerator(1);
  at::empty({elements}).bernoulli_(0.5, generator);
  auto* impl = generator.get<at::CPUGeneratorImpl>();
  const uint32_t next = impl->random();
  for (int64_t draws = 0; draws < 100 * elements; ++draws)
    if (twin.get<at::CPUGeneratorImpl>()->random() == next) return draws;
  return -1;
}

TEST(Random, EqualsEagerOnOneGenerator) {
  Program p = dropoutProgram(3);
  auto& instructions = p.executable.segments[0].instructions;
  instructions[0].random_draws = drawsOf(20);
  instructions[1].random_offset = drawsOf(20);
  instructions[1].random_draws = drawsOf(7);
  p.executable.random_draws = drawsOf(20) + drawsOf(7);
  Runner runner(p);
  at::Generator eager = at::detail::createCPUGenerator(99);
  runner.backend().setGenerator(eager);
  for (int step = 0; step < 3; ++step) {
    const auto result = runner.step({});
    for (int k = 0; k < 3; ++k) {
      EXPECT_TRUE(sameBits(result[0][k], at::empty({4, 5}).bernoulli_(0.5, eager)));
      EXPECT_TRUE(sameBits(result[1][k], at::empty({7}).bernoulli_(0.3, eager)));
    }
  }
  EXPECT_TRUE(at::equal(runner.backend().generator().get_state(), eager.get_state()));
}

// The first of the two masks is drawn from a generator of the program's own.
TEST(Random, EqualsEagerOnAGeneratorOfTheProgramsOwn) {
  for (const bool restarts : {false, true}) {
    Program p = dropoutProgram(3);
    auto& instructions = p.executable.segments[0].instructions;
    instructions[0].random_draws = drawsOf(20);
    instructions[0].args[2].i = 1;
    instructions[1].random_offset = 0;
    instructions[1].random_draws = p.executable.random_draws = drawsOf(7);
    at::Generator eager = at::detail::createCPUGenerator(99), own = at::detail::createCPUGenerator(7);
    at::Generator reference = own.clone();
    const at::Generator start = own.clone();
    std::unique_ptr<CpuBackend> backend = CpuBackend::create(p.executable, {});
    backend->setGenerator(eager);
    backend->setOwnStreams({{.generator = own, .start = start, .restarts = restarts, .draws = drawsOf(20)}});
    RunnerOf<CpuBackend> runner(p, std::move(backend));
    for (int step = 0; step < 2; ++step) {
      const auto result = runner.step({});
      for (int k = 0; k < 3; ++k) {
        if (restarts) reference = start.clone();
        EXPECT_TRUE(sameBits(result[0][k], at::empty({4, 5}).bernoulli_(0.5, reference)));
        EXPECT_TRUE(sameBits(result[1][k], at::empty({7}).bernoulli_(0.3, eager)));
      }
      EXPECT_TRUE(at::equal(own.get_state(), reference.get_state()));
    }
  }
}

TEST(Random, AGeneratorThatTheProgramDoesNotHaveIsRefused) {
  Program p = dropoutProgram(1);
  p.executable.segments[0].instructions[0].args[2].i = 1;
  EXPECT_THROW(Runner runner(p), UserError);
}

TEST(Random, OrderOfMicroBatchesDoesNotMatter) {
  Program in_order = dropoutProgram(4), shuffled = dropoutProgram(4);
  auto& actions = shuffled.executable.workers[0].actions;
  std::swap(actions[0], actions[2]);
  std::swap(actions[1], actions[3]);
  Runner a(in_order), b(shuffled);
  a.backend().setGenerator(at::detail::createCPUGenerator(5));
  b.backend().setGenerator(at::detail::createCPUGenerator(5));
  for (int step = 0; step < 2; ++step) {
    const auto expected = a.step({}), result = b.step({});
    for (int k = 0; k < 4; ++k) {
      EXPECT_TRUE(sameBits(result[0][k], expected[0][k]));
      EXPECT_TRUE(sameBits(result[1][k], expected[1][k]));
    }
  }
  EXPECT_TRUE(at::equal(a.backend().generator().get_state(), b.backend().generator().get_state()));
}

// Three normal numbers, a mask of seven elements, two normal numbers more.
Program normalProgram(int64_t micro_batches) {
  Program p(micro_batches);
  const int64_t mask_draws = drawsOf(7);
  p.executable.random_draws = mask_draws;
  p.executable.normals = {.count = 5, .spare = mask_draws};
  const int32_t first = p.value(f32({3})), mask = p.value(f32({7})), second = p.value(f32({2}));
  exe::Instruction& a = p.op("aten::normal_", {Arg::id(first), Arg::real(0), Arg::real(1), randomStream()}, {-1});
  a.writes = {first};
  a.random_draws = a.random_offset = 0;
  a.normals = {.count = 3, .spare = 0};  // after the mask of the previous micro-batch
  exe::Instruction& b = p.op("aten::bernoulli_.float", {Arg::id(mask), Arg::real(0.5), randomStream()}, {-1});
  b.writes = {mask};
  b.random_draws = mask_draws, b.random_offset = 0;
  b.normals = {.before = 3};
  exe::Instruction& c = p.op("aten::normal_", {Arg::id(second), Arg::real(0), Arg::real(1), randomStream()}, {-1});
  c.writes = {second};
  c.random_draws = 0, c.random_offset = mask_draws;
  c.normals = {.count = 2, .before = 3, .spare = 0};
  p.emit(first);
  p.emit(mask);
  p.emit(second);
  return p;
}

TEST(Random, SparesCrossMicroBatchesAndSteps) {
  for (const bool from_spare : {false, true}) {
    for (const bool is_shuffled : {false, true}) {
      Program p = normalProgram(3);
      auto& actions = p.executable.workers[0].actions;
      if (is_shuffled) std::swap(actions[0], actions[2]);
      Runner runner(p);
      at::Generator eager = at::detail::createCPUGenerator(99);
      if (from_spare) at::empty({1}).normal_(0, 1, eager);
      runner.backend().setGenerator(eager);
      for (int step = 0; step < 3; ++step) {
        const auto result = runner.step({});
        for (int k = 0; k < 3; ++k) {
          EXPECT_TRUE(sameBits(result[0][k], at::empty({3}).normal_(0, 1, eager))) << step << "." << k;
          EXPECT_TRUE(sameBits(result[1][k], at::empty({7}).bernoulli_(0.5, eager))) << step << "." << k;
          EXPECT_TRUE(sameBits(result[2][k], at::empty({2}).normal_(0, 1, eager))) << step << "." << k;
        }
        EXPECT_TRUE(at::equal(runner.backend().generator().get_state(), eager.get_state())) << step;
      }
    }
  }
}

TEST(Random, AFailedStepDrawsNothing) {
  Program p = dropoutProgram(1);
  p.op("aten::mm", {Arg::id(0), Arg::id(0)}, {0});  // 4x5 times 4x5
  Runner runner(p);
  runner.backend().setGenerator(at::detail::createCPUGenerator(5));
  const at::Tensor before = runner.backend().generator().get_state();
  EXPECT_ANY_THROW(runner.step({}));
  EXPECT_TRUE(at::equal(runner.backend().generator().get_state(), before));
}

}  // namespace
}  // namespace abele::device::testing
