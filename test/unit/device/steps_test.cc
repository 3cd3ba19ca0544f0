// The device contract: numbers of updates, random numbers, order, failures.
#include <thread>

#include <ATen/CPUGeneratorImpl.h>

#include "base/optimizers.h"
#include "conformance.h"
#include "runtime/runtime.h"

namespace abele::device::testing {
namespace {

using exe::ExternalKind;

struct Steps : Conformance {};

// --- hyper-parameters ------------------------------------------------------------------------------------------------

Program sgd() {
  Program p;
  const int32_t gradient = p.input(f32({4})), weight = p.external(f32({4}), ExternalKind::kParameter);
  const int32_t sum = p.external(f32({4}), ExternalKind::kAccumulator);
  p.op("abele::accumulate", {Arg::id(sum), Arg::id(gradient)}).writes = {sum};
  p.update("abele::sgd_", {Arg::id(weight), Arg::id(sum), Arg(), Arg::integer(1)}).writes = {weight};
  return p;
}

TEST_P(Steps, UpdatesReadTheNumbersOfTheirGroup) {
  const Program p = sgd();
  const at::Tensor weight = at::randn({4}), gradient = at::randn({4});
  const auto updated = [&](double lr, double lr_of_other) {
    Runner runner(p);
    runner.backend().upload(0, weight);
    runner.backend().setHyper(0, "lr", lr_of_other);
    runner.backend().setHyper(1, "lr", lr);
    runner.step({gradient});
    return runner.backend().value(0);
  };
  const at::Tensor slow = updated(0.25, 0);
  EXPECT_TRUE(sameBits(slow, updated(0.25, 3)));
  EXPECT_FALSE(sameBits(slow, updated(0.5, 0)));
  if (GetParam().computes) {
    EXPECT_TRUE(sameBits(slow, weight.sub(gradient, 0.25)));
  }
}

TEST_P(Steps, OffChipMemoryChangesNoNumber) {
  at::Tensor expected, rows = at::randn({3, 4}), weight = at::randn({4});
  for (const bool off_chip : {false, true}) {
    Program p(/*micro_batches=*/3);
    const int32_t row = p.input(f32({1, 4})), w = p.external(f32({4}), ExternalKind::kParameter);
    const int32_t sum = p.external(f32({1, 4}), ExternalKind::kAccumulator), product = p.value(f32({1, 4}));
    p.op("aten::mul.Tensor", {Arg::id(row), Arg::id(w)}, {product});
    p.op("abele::accumulate", {Arg::id(sum), Arg::id(product)}).writes = {sum};
    const int32_t as_weight = p.viewOf(sum, 0, f32({4}));
    p.update("abele::sgd_", {Arg::id(w), Arg::id(as_weight), Arg(), Arg::integer(0)}).writes = {w};
    p.executable.groups[p.weights].off_chip = p.executable.groups[p.values].off_chip = off_chip;
    Runner runner(p);
    runner.backend().upload(0, weight);
    runner.backend().setHyper(0, "lr", 0.5);
    for (int step = 0; step < 3; ++step) runner.step({rows});
    const at::Tensor value = runner.backend().value(0);
    if (off_chip) {
      EXPECT_TRUE(sameBits(value, expected));
    }
    expected = value;
  }
}

TEST_P(Steps, ANumberThatIsSetCountsFromTheNextStepOn) {
  const Program p = sgd();
  Runner changed(p), constant(p);
  const at::Tensor gradient = at::randn({4});
  for (Runner* runner : {&changed, &constant}) {
    runner->backend().setHyper(1, "lr", 0.25);
    runner->step({gradient});
  }
  EXPECT_TRUE(sameBits(changed.backend().value(0), constant.backend().value(0)));
  changed.backend().setHyper(1, "lr", 0.5);
  for (Runner* runner : {&changed, &constant}) runner->step({gradient});
  EXPECT_FALSE(sameBits(changed.backend().value(0), constant.backend().value(0)));
}

TEST_P(Steps, TakesEveryNumberOfTheTableAndNoOther) {
  const Program p = sgd();
  const auto backend = load(p);
  for (const OptimizerRow& row : allOptimizers())
    for (const std::string& name : row.numbers) EXPECT_EQ(codeOf([&] { backend->setHyper(1, name, 0.5); }), "none");
  for (const char* name : {"maximize", "gradient_scale", "fused", "libtorch", "rounds_rate"})
    EXPECT_EQ(codeOf([&] { backend->setHyper(1, name, 1); }), "none") << name;
  EXPECT_EQ(codeOf([&] { backend->setHyper(1, "speed", 1); }), "E0706");
  EXPECT_EQ(codeOf([&] { backend->setHyper(1000, "lr", 1); }), "none") << "a group without updates";
}

TEST_P(Steps, CountsNoGradientsUnlessAsked) {
  const Program p = sgd();
  Runner runner(p);
  runner.step({at::randn({4})});
  const GradientSizes sizes = runner.backend().takeGradientSizes();
  EXPECT_EQ(sizes.large, 0);
  EXPECT_EQ(sizes.all, 0);
  EXPECT_FALSE(sizes.overflowed);
}

// --- random numbers --------------------------------------------------------------------------------------------------

// Equal states draw equal numbers.
std::vector<uint8_t> stateOf(const at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  const auto* bytes = state.const_data_ptr<uint8_t>();
  return {bytes, bytes + state.numel()};
}

void skip(at::Generator& generator, int draws) {
  if (generator.device().is_cpu())
    for (int i = 0; i < draws; ++i) generator.get<at::CPUGeneratorImpl>()->random();
  else
    generator.set_offset(generator.get_offset() + draws);
}

// A program of two micro-batches with three draws each.
Program drawing() {
  Program p(2);
  p.executable.random_draws = 3;
  p.emit(p.input(f32({1})));
  return p;
}

TEST_P(Steps, TheGeneratorIsACopyBothWays) {
  const Program p = drawing();
  const auto backend = load(p);
  at::Generator given = backend->newGenerator(7);
  const std::vector<uint8_t> numbers = stateOf(given);
  backend->setGenerator(given);
  skip(given, 1);
  at::Generator copy = backend->generator();
  skip(copy, 1);
  EXPECT_EQ(stateOf(backend->generator()), numbers);
}

TEST_P(Steps, ACompletedStepMovesTheGeneratorBehindItsDraws) {
  const Program p = drawing();
  Runner runner(p);
  at::Generator expected = runner.backend().newGenerator(7);
  runner.backend().setGenerator(expected);
  for (int step = 0; step < 3; ++step) {
    runner.step({at::zeros({2})});
    skip(expected, 6);
    EXPECT_EQ(stateOf(runner.backend().generator()), stateOf(expected)) << "step " << step;
  }
}

TEST_P(Steps, AFailedStepDrawsNothingAndRoundsNothing) {
  const Program p = drawing();
  const auto backend = load(p, {.rounding_seed = 5});
  const auto device = backend->makeDevice(0);
  EXPECT_EQ(backend->rounding().seed, 5u);
  backend->setGenerator(backend->newGenerator(7));
  backend->setRounding({.seed = 11, .step = 40});
  const std::vector<uint8_t> before = stateOf(backend->generator());
  for (const bool completed : {false, true}) {
    backend->bindInputs({at::zeros({2})});
    backend->bindOutputs({{}});
    backend->begin(0);
    for (int32_t k = 0; k < (completed ? 2 : 1); ++k) device->run({0, 0, k, k, 0});
    backend->finish(completed);
    EXPECT_EQ(stateOf(backend->generator()) == before, !completed);
    EXPECT_EQ(backend->rounding().seed, 11u);
    EXPECT_EQ(backend->rounding().step, completed ? 41u : 40u);
  }
}

// --- order, events and failures --------------------------------------------------------------------------------------

TEST_P(Steps, RunsOnAnotherThread) {
  Program p;
  p.emit(p.input(f32({2})));
  const auto backend = load(p);
  const auto device = backend->makeDevice(0);
  const at::Tensor x = at::randn({2}).set_requires_grad(true), result = at::empty({2});
  backend->bindInputs({x});
  backend->bindOutputs({{result}});
  backend->begin(0);
  std::thread([&] {
    device->attach();
    device->run({});
  }).join();
  backend->finish(true);
  EXPECT_TRUE(sameBits(result, x));
  EXPECT_FALSE(result.requires_grad());
}

// Two workers. The second reads copies of the first one's values from a ring of two frames.
struct Pipeline {
  static constexpr int32_t kMicroBatches = 6;
  Program p{kMicroBatches, /*frames=*/2};

  Pipeline() {
    exe::Executable& e = p.executable;
    const int32_t in = p.input(f32({4})), between = p.value(f32({4}));
    e.segments[1] = {1, exe::Direction::kForward, "fwd/1", {}};
    p.op("abele::copy", {Arg::id(between), Arg::id(in)}).writes = {between};
    const int32_t out = p.output(f32({4}));
    p.op("abele::emit", {Arg::id(out), Arg::id(between)}, {}, 1).writes = {out};
    e.workers.assign(2, {});
    for (int32_t k = 0; k < kMicroBatches; ++k) {
      e.workers[0].actions.push_back({0, k, {}});
      if (k >= 2) e.workers[0].actions.back().waits.push_back({1, k - 1});
      e.workers[1].actions.push_back({1, k, {{0, k + 1}}});
    }
    e.workers[1].device = 1;
  }
};

TEST_P(Steps, WorkersSeeWhatTheirWaitsPromise) {
  const Pipeline pipeline;
  expectVerified(pipeline.p);
  const auto backend = load(pipeline.p);
  runtime::Runtime runtime(pipeline.p.executable, *backend);
  for (int step = 0; step < 20; ++step) {
    const at::Tensor x = at::randn({4 * Pipeline::kMicroBatches});
    std::vector<at::Tensor> results;
    for (int k = 0; k < Pipeline::kMicroBatches; ++k) results.push_back(at::empty({4}));
    backend->bindInputs({x});
    backend->bindOutputs({results});
    EXPECT_EQ(runtime.run().actions.size(), 2u * Pipeline::kMicroBatches);
    EXPECT_TRUE(sameBits(at::cat(results), x));
  }
}

TEST_P(Steps, AnAbortedStepLeavesADeviceThatWorks) {
  const Pipeline pipeline;
  const auto backend = load(pipeline.p);
  runtime::Runtime runtime(pipeline.p.executable, *backend);
  const at::Tensor x = at::randn({4 * Pipeline::kMicroBatches}), last = at::zeros({4});
  std::vector<at::Tensor> results(Pipeline::kMicroBatches);
  results.back() = last;
  backend->interrupt();  // between steps, when no call waits
  for (int step = 0; step < 5; ++step) {
    backend->bindInputs({x});
    backend->bindOutputs({results});
    std::thread aborter([&] { runtime.abort(); });
    const std::string code = codeOf([&] { runtime.run(); });
    aborter.join();
    EXPECT_TRUE(code == "none" || code == "E0602") << code;
    backend->bindInputs({x + step});
    backend->bindOutputs({results});
    EXPECT_EQ(codeOf([&] { runtime.run(); }), "none");
    EXPECT_TRUE(sameBits(last, (x + step).narrow(0, 4 * (Pipeline::kMicroBatches - 1), 4)));
  }
}

TEST_P(Steps, AFailedStepPutsBuffersBack) {
  Program p(/*micro_batches=*/2);
  const int32_t in = p.input(f32({2})), buffer = p.external(f32({2}), ExternalKind::kBuffer);
  p.op("abele::copy", {Arg::id(buffer), Arg::id(in)}).writes = {buffer};
  const auto backend = load(p);
  const auto device = backend->makeDevice(0);
  const at::Tensor before = at::randn({2});
  backend->upload(0, before);
  for (const bool completed : {false, true}) {
    const at::Tensor x = at::randn({4});
    backend->bindInputs({x});
    backend->bindOutputs({});
    backend->begin(0);
    for (int32_t k = 0; k < (completed ? 2 : 1); ++k) device->run({0, 0, k, k, 0});
    backend->finish(completed);
    EXPECT_TRUE(sameBits(backend->value(0), completed ? x.narrow(0, 2, 2) : before));
  }
}

struct Seen final : Watch {
  struct Event {
    int32_t segment, micro_batch, instruction, slot;
    bool operator==(const Event&) const = default;
  };
  std::vector<Event> events;
  std::vector<at::Tensor> values;
  void computed(const runtime::ActionContext& action, int32_t instruction, int32_t slot,
                const at::Tensor& tensor) override {
    events.push_back({action.segment, action.micro_batch, instruction, slot});
    values.push_back(tensor.clone());
  }
};

TEST_P(Steps, AWatchSeesEveryWriteInOrder) {
  Program p(/*micro_batches=*/2);
  const int32_t in = p.input(f32({2})), first = p.value(f32({2})), second = p.value(f32({2}));
  p.op("abele::copy", {Arg::id(first), Arg::id(in)}).writes = {first};
  p.op("abele::copy", {Arg::id(second), Arg::id(first)}).writes = {second};
  p.emit(second);
  const int32_t out = p.executable.output_slots[0];
  Seen seen;
  Runner runner(p, {.watch = &seen});
  const at::Tensor x = at::randn({4});
  runner.stepInto({x}, {{at::Tensor(), at::empty({2})}});  // unwanted results are not filled
  EXPECT_EQ(seen.events,
            (std::vector<Seen::Event>{
                {0, 0, 0, first}, {0, 0, 1, second}, {0, 1, 0, first}, {0, 1, 1, second}, {0, 1, 2, out}}));
  for (size_t i = 0; i < seen.values.size(); ++i)
    EXPECT_TRUE(sameBits(seen.values[i].cpu(), x.narrow(0, i < 2 ? 0 : 2, 2)));
}

TEST_P(Steps, EqualStepsGiveEqualBytes) {
  const Program p = sgd();
  const at::Tensor gradient = at::randn({4});
  std::vector<at::Tensor> values;
  for (int run = 0; run < 2; ++run) {
    Runner runner(p);
    runner.backend().upload(0, at::ones({4}));
    runner.backend().setHyper(1, "lr", 0.1);
    for (int step = 0; step < 3; ++step) runner.step({gradient * step});
    values.push_back(runner.backend().value(0));
  }
  EXPECT_TRUE(sameBits(values[0].view(at::kInt), values[1].view(at::kInt)));
}

INSTANTIATE_TEST_SUITE_P(Devices, Steps, ::testing::ValuesIn(allBackends()), nameOf);

}  // namespace
}  // namespace abele::device::testing
