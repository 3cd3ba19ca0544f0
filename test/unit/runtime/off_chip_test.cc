// Off-chip groups: each step fetches them before use and releases them after it; a failure ends in the fetch's own
// error.
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/null/null_backend.h"
#include "exe/build/build.h"
#include "ir/text.h"
#include "move_check.h"
#include "runtime/runtime.h"

namespace abele::runtime {
namespace {

// Three phases on one device, each with a weight and its gradient sum.
const char* kPhases = R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=0}
  stage 2 "s2" {device=0}
  external 0 parameter "w0": f32[16] {trainable}
  external 1 parameter "w1": f32[32] {trainable}
  external 2 parameter "w2": f32[48] {trainable}
  external 3 accumulator "grad0": f32[16] {owner=0}
  external 4 accumulator "grad1": f32[32] {owner=1}
  external 5 accumulator "grad2": f32[48] {owner=2}
  input %0 "x": f32[64] = argument(0)
  input %1 "w0": f32[16] = parameter(0)
  input %2 "w1": f32[32] = parameter(1)
  input %3 "w2": f32[48] = parameter(2)
  input %4 "grad0": f32[16] = accumulator(3)
  input %5 "grad1": f32[32] = accumulator(4)
  input %6 "grad2": f32[48] = accumulator(5)
  %7: f32[64] = aten.f(%0, %1) {stage=0}
  %8: f32[64] = aten.f(%7, %2) {stage=1}
  %9: f32[] = aten.loss(%8, %3) {stage=2}
  %10: f32[48] = aten.dw(%9, %8) {dir=bwd, stage=2}
  %11: f32[64] = aten.dx(%9, %3) {dir=bwd, stage=2}
  _ = abele.accumulate(%6, %10) writes(0: %6 -> %12: f32[48]) {dir=bwd, stage=2}
  %13: f32[32] = aten.dw(%11, %7) {dir=bwd, stage=1}
  %14: f32[64] = aten.dx(%11, %2) {dir=bwd, stage=1}
  _ = abele.accumulate(%5, %13) writes(0: %5 -> %15: f32[32]) {dir=bwd, stage=1}
  %16: f32[16] = aten.dw(%14, %0) {dir=bwd, stage=0}
  _ = abele.accumulate(%4, %16) writes(0: %4 -> %17: f32[16]) {dir=bwd, stage=0}
  _ = abele.sgd_(%1, %17, none, 0) writes(0: %1 -> %18: f32[16]) {dir=update, stage=0}
  _ = abele.sgd_(%2, %15, none, 0) writes(0: %2 -> %19: f32[32]) {dir=update, stage=1}
  _ = abele.sgd_(%3, %12, none, 0) writes(0: %3 -> %20: f32[48]) {dir=update, stage=2}
  output loss %9
  output result(0) %9
  output update(0) %18
  output update(1) %19
  output update(2) %20
  output update(3) %17
  output update(4) %15
  output update(5) %12
}
)";

plan::PlanOptions phased(bool fetch_ahead) {
  plan::PlanOptions options{.schedule = schedule::ScheduleKind::kSharded};
  plan::Locations& l = options.locations;
  for (plan::TensorLocation* location : {&l.weights, &l.optimizer_state, &l.accumulators, &l.activations})
    location->off_chip = true;
  l.fetch_ahead = fetch_ahead;
  return options;
}

struct Case {
  plan::Plan plan;
  exe::Executable executable;
  explicit Case(const plan::PlanOptions& options) {
    const ir::Graph graph = ir::parse(kPhases);
    plan = plan::makePlan(graph, options);
    executable = exe::build(graph, plan);
    EXPECT_EQ(exe::verify(executable), std::vector<std::string>{});
    EXPECT_EQ(test::findMoveFaults(executable), std::vector<std::string>{}) << exe::print(executable);
  }
};

TEST(OffChip, ADeviceHoldsWhatAnActionAndTheNextOneNeed) {
  plan::PlanOptions everything = phased(true);
  everything.locations = {};
  const Case in_memory(everything), ahead(phased(true)), alone(phased(false));
  const int64_t all = exe::peakBytes(in_memory.executable, 0);
  EXPECT_EQ(exe::offChipBytes(in_memory.executable), 0);
  // Weights and sums of 64, 128 and 192 bytes; activations of 256, 256 and (backward of the stages) 256 bytes each.
  EXPECT_LT(exe::peakBytes(alone.executable, 0), exe::peakBytes(ahead.executable, 0));
  EXPECT_LT(exe::peakBytes(ahead.executable, 0), all);
  EXPECT_EQ(exe::residentBytes(ahead.executable, 0) + exe::offChipBytes(ahead.executable), all);
  // The update of stage 2 alone: its weight and its sum.
  const auto& update = alone.executable.workers[0].actions.back();
  EXPECT_EQ(alone.executable.segments[update.segment].name, "update/2");
  int64_t bytes = 0;
  for (const exe::FrameUse& use : update.fetches) bytes += alone.executable.groups[use.group].frame_bytes;
  EXPECT_EQ(bytes, 2 * 192);
  for (const Case* c : {&in_memory, &ahead, &alone})
    EXPECT_EQ(plan::peakDeviceBytes(c->plan), std::vector<int64_t>{exe::peakBytes(c->executable, 0)});
}

TEST(OffChip, SmallTensorsStayOnTheDevice) {
  plan::PlanOptions options = phased(true);
  options.locations.weights.min_elements = 33;
  const Case c(options);
  const std::string text = plan::print(c.plan);
  EXPECT_NE(text.find("stage=2 weights bytes=192"), std::string::npos) << text;
  EXPECT_EQ(text.find("stage=1 weights"), std::string::npos) << text;
}

class Order : public testing::TestWithParam<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(AheadAndCaller, Order, testing::Combine(testing::Bool(), testing::Bool()));

TEST_P(Order, FetchesComeBeforeTheirActionAndReleasesBehind) {
  const auto [fetch_ahead, caller_works] = GetParam();
  const Case c(phased(fetch_ahead));
  device::NullBackend backend(c.executable);
  backend.moveOffChipMemory(true);
  backend.letCallerWork(caller_works);
  const std::vector<exe::Action>& actions = c.executable.workers[0].actions;
  constexpr size_t kSteps = 3;
  {
    Runtime runtime(c.executable, backend);
    for (size_t step = 0; step < kSteps; ++step) runtime.run();
  }
  // The calls in their required order. Those of the end may be missing.
  const std::vector<device::NullBackend::Move> moves = backend.moves();
  size_t at = 0;
  auto expect = [&](const std::vector<exe::FrameUse>& frames, bool is_fetch, size_t least, size_t most) {
    for (const exe::FrameUse& frame : frames) {
      if (at == moves.size()) return;
      EXPECT_EQ(moves[at].is_fetch, is_fetch) << at;
      EXPECT_EQ(moves[at].frame, frame) << at;
      EXPECT_GE(moves[at].events_before, least) << at;
      EXPECT_LE(moves[at].events_before, most) << at;
      ++at;
    }
  };
  const size_t total = kSteps * actions.size();
  if (fetch_ahead) expect(actions[0].fetches, true, 0, 0);
  for (size_t i = 0; i < total; ++i) {
    const exe::Action& next = actions[(i + 1) % actions.size()];
    if (!fetch_ahead) expect(actions[i % actions.size()].fetches, true, i, i);
    if (fetch_ahead) expect(next.fetches, true, i, i + 1);
    expect(actions[i % actions.size()].releases, false, i + 1, total);
  }
  EXPECT_EQ(at, moves.size());
  EXPECT_GE(at, actions.size() * (kSteps - 1));
}

TEST_P(Order, AFetchThatFailsEndsTheStepAndTheNextOneWorks) {
  const auto [fetch_ahead, caller_works] = GetParam();
  const Case c(phased(fetch_ahead));
  device::NullBackend backend(c.executable);
  backend.moveOffChipMemory(true);
  backend.letCallerWork(caller_works);
  bool fails = true;
  backend.setFetchHook([&](const exe::FrameUse& use) {
    if (fails && c.executable.groups[use.group].name == "off-chip/weights/stage1")
      throwDevice(ErrorCode::E0605, {.what = "the disk is gone"});
  });
  Runtime runtime(c.executable, backend);
  try {
    runtime.run();
    FAIL() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(errorCodeText(error.code()), "E0605");
    EXPECT_NE(std::string(error.what()).find("fwd/1"), std::string::npos) << error.what();
  }
  fails = false;
  runtime.run();
}

}  // namespace
}  // namespace abele::runtime
