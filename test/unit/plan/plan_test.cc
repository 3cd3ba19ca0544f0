#include "plan/plan.h"

#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"
#include "plan/packing.h"

namespace abele::plan {
namespace {

const PlanOptions kInference{.schedule = schedule::ScheduleKind::kForward, .device_iterations = 4};

std::string codeOf(const ir::Graph& graph, const PlanOptions& options, std::string* text = nullptr) {
  try {
    makePlan(graph, options);
  } catch (const Error& error) {
    if (text) *text = error.what();
    return errorCodeText(error.code());
  }
  return "none";
}

const char* kChain = R"(
graph @main {
  stage 0 "encoder" {device=0}
  stage 1 "decoder" {device=3}
  input %0 "x": f32[4] = argument(0)
  %1: f32[4] = aten.a(%0) {stage=0}
  %2: f32[4] = aten.b(%1) {stage=0}
  %3: f32[4] = aten.c(%2) {stage=0}
  %4: f32[4] = aten.d(%3) {stage=1}
  output result(0) %4
}
)";

TEST(MakePlan, GivesValuesTheShortestLifeThatFits) {
  const Plan plan = makePlan(ir::parse(kChain), kInference);
  EXPECT_EQ(plan.device_of, (std::vector<int>{0, 3}));
  EXPECT_EQ(plan.placement[0].home, Home::kInput);
  EXPECT_EQ(plan.placement[1], (Placement{Home::kStash, 0, 0}));      // in the frame before %3 is
  EXPECT_EQ(plan.placement[2], (Placement{Home::kTransient, 0, 0}));  // read while %1 is, and while %3 is made
  EXPECT_EQ(plan.placement[3], (Placement{Home::kStash, 0, 0}));
  EXPECT_EQ(plan.placement[4], (Placement{Home::kTransient, 1, 0}));
  EXPECT_EQ(plan.transient_bytes, (std::vector<int64_t>{64, 64}));
  EXPECT_EQ(plan.stash_bytes, (std::vector<int64_t>{64, 0}));
  EXPECT_EQ(plan.frames, (std::vector<int64_t>{2, 1}));  // one is read while the next is written
}

TEST(MakePlan, KeepsAsManyFramesAsMicroBatchesAreInWork) {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  stage 2 "s2" {device=2}
  input %0 "x": f32[4] = argument(0)
  %1: f32[4] = aten.a(%0) {stage=0}
  %2: f32[4] = aten.a(%1) {stage=1}
  %3: f32[4] = aten.a(%2) {stage=2}
  %4: f32[4] = aten.g(%3, %2) {dir=bwd, stage=2}
  %5: f32[4] = aten.g(%4, %1) {dir=bwd, stage=1}
  %6: f32[4] = aten.g(%5, %0) {dir=bwd, stage=0}
  output loss %3
}
)");
  const Plan plan = makePlan(graph, {.schedule = schedule::ScheduleKind::k1F1B, .accumulation = 8});
  EXPECT_EQ(plan.frames, (std::vector<int64_t>{3, 3, 1}));
  using ir::Direction;
  // The gradient that stage 1 reads later keeps a frame of its own, not all that stage 2 has from forward to backward.
  const Task forward{2, Direction::kForward}, backward{2, Direction::kBackward};
  EXPECT_EQ(plan.users[2], (std::vector<Task>{forward, backward}));
  EXPECT_EQ(plan.rings, (std::vector<TaskRing>{{backward, false, 2, 64, {{1, Direction::kBackward}, backward}}}));
  EXPECT_EQ(plan.placement[4], (Placement{.home = Home::kRing, .stage = 2, .ring = 0}));
  EXPECT_EQ(verify(plan, graph), std::vector<std::string>{});
  EXPECT_EQ(parse(print(plan)), plan);
  EXPECT_EQ(plan.users[0],
            (std::vector<Task>{{0, Direction::kForward}, {1, Direction::kForward}, {1, Direction::kBackward}}));
  const Plan one = makePlan(graph, {.schedule = schedule::ScheduleKind::kSharded, .accumulation = 8});
  EXPECT_EQ(one.frames, (std::vector<int64_t>{1, 1, 1}));
}

// Layers whose forward keeps one value for backward, and whose backward hands one on.
ir::Graph layers(int n) {
  std::string text = "graph @main {training} {\n  stage 0 \"s0\" {device=0}\n  input %0 \"x\": f32[16] = argument(0)\n";
  for (int i = 1; i <= n; ++i) text += cat("  %", i, ": f32[16] = aten.f(%", i - 1, ") {stage=0}\n");
  text += cat("  %", n + 1, ": f32[16] = aten.g(%", n, ") {dir=bwd, stage=0}\n");
  for (int i = 1; i < n; ++i)
    text += cat("  %", n + 1 + i, ": f32[16] = aten.g(%", n + i, ", %", n - i, ") {dir=bwd, stage=0}\n");
  return ir::parse(cat(text, "  output loss %", n, "\n}\n"));
}

TEST(MakePlan, BackwardWorksInTheMemoryOfActivationsThatDied) {
  const int n = 8;
  const ir::Graph graph = layers(n);
  const Plan plan = makePlan(graph, {.schedule = schedule::ScheduleKind::kSharded, .accumulation = 4});
  // As many as forward keeps, and the first gradient: no fewer bytes are alive when that is made.
  EXPECT_EQ(plan.stash_bytes, (std::vector<int64_t>{n * 64}));
  EXPECT_EQ(plan.transient_bytes, (std::vector<int64_t>{64}));
  EXPECT_EQ(plan.placement[n + 1].home, Home::kTransient);
  EXPECT_EQ(plan.placement[n + 2], plan.placement[n]);  // which died with the node before
  EXPECT_EQ(verify(plan, graph), std::vector<std::string>{});
  EXPECT_EQ(parse(print(plan)), plan);
}

TEST(MakePlan, RefusesCostsOfAnotherNumberOfStages) {
  PlanOptions options = kInference;
  options.costs.resize(3);
  std::string text;
  EXPECT_EQ(codeOf(ir::parse(kChain), options, &text), "E0404");
  EXPECT_NE(text.find("costs of 3 stages for a program of 2"), std::string::npos) << text;
}

TEST(MakePlan, RefusesDevicesThatDoNotExist) {
  std::string text;
  PlanOptions options = kInference;
  options.num_devices = 4;
  EXPECT_EQ(codeOf(ir::parse(kChain), options), "none");
  options.num_devices = 3;
  EXPECT_EQ(codeOf(ir::parse(kChain), options, &text), "E0402");
  EXPECT_NE(text.find("decoder"), std::string::npos) << text;
  EXPECT_NE(text.find("make 4 devices available"), std::string::npos) << text;
}

TEST(MakePlan, RefusesValuesThatFlowBack) {
  ir::Graph graph = ir::parse(kChain);
  graph.nodes[1].stage = 1;
  EXPECT_EQ(codeOf(graph, kInference), "E0403");
}

const char* kStatistics = R"(
graph @main {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  external 0 buffer "mean": f32[4]
  input %0 "x": f32[4] = argument(0)
  input %1 "mean": f32[4] = buffer(0)
  %2: f32[4] = aten.a(%0) {stage=0}
  _ = aten.mul_(%1, %2) writes(0: %1 -> %3: f32[4]) {stage=0}
  %4: f32[4] = aten.b(%3, %2) {stage=1}
  output result(0) %4
  output update(0) %3
}
)";

TEST(MakePlan, UpdatesStatisticsInPlaceOnlyIfNobodyElseLooks) {
  ir::Graph graph = ir::parse(kStatistics);
  Plan plan = makePlan(graph, kInference);
  EXPECT_EQ(plan.placement[1].home, Home::kPersistent);
  EXPECT_EQ(plan.placement[3].home, Home::kStash);  // stage 1 reads it while stage 0 is at the next micro-batch
  graph.nodes[2].stage = 0;
  plan = makePlan(graph, kInference);
  EXPECT_EQ(plan.placement[3], plan.placement[1]);
}

TEST(MakePlan, RefusesABufferThatStagesShareInAPipeline) {
  ir::Graph graph = ir::parse(kStatistics);
  graph.nodes[0].args = {Arg::id(1)};  // stage 0 reads the buffer
  graph.nodes[1].stage = 1;            // stage 1 updates it
  std::string text;
  EXPECT_EQ(codeOf(graph, kInference, &text), "E0403");
  EXPECT_NE(text.find("mean is updated in every micro-batch"), std::string::npos) << text;
  EXPECT_EQ(codeOf(graph, {.schedule = schedule::ScheduleKind::kSharded}), "none");
}

TEST(MakePlan, RefusesAParameterWrittenByForwardWhileMicroBatchesOverlap) {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  external 0 parameter "w": f32[4]
  external 1 accumulator "grad/w": f32[4]
  input %0 "w": f32[4] = parameter(0)
  input %1 "grad/w": f32[4] = accumulator(1)
  _ = aten.renorm_(%0) writes(0: %0 -> %2: f32[4]) {stage=0, src="net.py:3"}
  %3: f32[4] = aten.g(%2) {dir=bwd, stage=0}
  _ = abele.accumulate(%1, %3) writes(0: %1 -> %4: f32[4]) {dir=bwd, stage=0}
  _ = abele.sgd_(%2, %4) writes(0: %2 -> %5: f32[4]) {dir=update, stage=0}
  output update(0) %5
  output update(1) %4
}
)");
  EXPECT_EQ(codeOf(graph, {.schedule = schedule::ScheduleKind::kGPipe, .accumulation = 2}), "E0403");
  for (const int64_t accumulation : {1, 2})
    EXPECT_EQ(codeOf(graph, {.schedule = schedule::ScheduleKind::k1F1B, .accumulation = accumulation}), "none");
}

TEST(MakePlan, MakesTheOnlyGradientOfAnUpdateInTheAccumulator) {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  external 0 parameter "a": f32[4,2]
  external 1 parameter "b": f32[4,2]
  external 2 accumulator "grad/a": f32[4,2] {owner=0}
  external 3 accumulator "grad/b": f32[4,2] {owner=1}
  input %0 "x": f32[4] = argument(0)
  input %1 "a": f32[4,2] = parameter(0)
  input %2 "b": f32[4,2] = parameter(1)
  input %3 "grad/a": f32[4,2] = accumulator(2)
  input %4 "grad/b": f32[4,2] = accumulator(3)
  %5: f32[4] = aten.f(%0, %1, %2) {stage=0}
  %6: f32[4,2] = aten.g(%5, %0) {dir=bwd, stage=0}
  _ = abele.accumulate(%3, %6) writes(0: %3 -> %7: f32[4,2]) {dir=bwd, stage=0}
  %8: f32[4,2] = aten.h(%5, %0) {dir=bwd, stage=0}
  _ = abele.accumulate(%4, %8) writes(0: %4 -> %9: f32[4,2]) {dir=bwd, stage=0}
  _ = aten.i_(%8) writes(0: %8 -> %10: f32[4,2]) {dir=bwd, stage=0}
  _ = abele.sgd_(%1, %7) writes(0: %1 -> %11: f32[4,2]) {dir=update, stage=0}
  _ = abele.sgd_(%2, %9) writes(0: %2 -> %12: f32[4,2]) {dir=update, stage=0}
  output loss %5
  output update(0) %11
  output update(1) %12
  output update(2) %7
  output update(3) %9
}
)");
  const Plan one = makePlan(graph, {.accumulation = 1});
  EXPECT_EQ(one.placement[6], one.placement[3]);
  EXPECT_EQ(one.placement[8].home, Home::kTransient);  // somebody writes into it behind the sum
  EXPECT_EQ(one.placement[10], one.placement[8]);
  const Plan sum = makePlan(graph, {.accumulation = 2});
  EXPECT_EQ(sum.placement[6].home, Home::kTransient);
}

TEST(Pack, ReusesMemoryOfTheDead) {
  std::vector<Interval> intervals{{0, 1, 100, 0}, {1, 2, 64, 0}, {2, 3, 60, 0}, {0, 3, 1, 0}, {5, 5, 0, 0}};
  EXPECT_EQ(pack(intervals), 128 + 64 + 64);
  EXPECT_EQ(intervals[0].offset_bytes, 0);
  EXPECT_EQ(intervals[1].offset_bytes, 128);
  EXPECT_EQ(intervals[2].offset_bytes, 0);
  EXPECT_EQ(intervals[3].offset_bytes, 192);
}

// The rule of pack(), step by step: largest first, each at the lowest gap among those alive at the same time.
int64_t packByScanning(std::vector<Interval>& intervals) {
  std::vector<Interval*> order;
  for (Interval& item : intervals) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(),
                   [](const Interval* a, const Interval* b) { return a->bytes > b->bytes; });
  std::vector<const Interval*> placed;
  int64_t total = 0;
  for (Interval* item : order) {
    const int64_t bytes = alignUp(item->bytes);
    std::sort(placed.begin(), placed.end(),
              [](const Interval* a, const Interval* b) { return a->offset_bytes < b->offset_bytes; });
    item->offset_bytes = 0;
    for (const Interval* other : placed) {
      if (other->begin > item->end || other->end < item->begin) continue;
      if (other->offset_bytes - item->offset_bytes >= bytes) break;
      item->offset_bytes = std::max(item->offset_bytes, other->offset_bytes + alignUp(other->bytes));
    }
    total = std::max(total, item->offset_bytes + bytes);
    placed.push_back(item);
  }
  return total;
}

TEST(Pack, FindsTheLowestGapThatFits) {
  std::mt19937 random(1);
  for (int run = 0; run < 300; ++run) {
    std::vector<Interval> found(1 + random() % 60);
    for (Interval& item : found) {
      item.begin = random() % 40;
      item.end = random() % 8 == 0 ? std::numeric_limits<int64_t>::max() : item.begin + random() % (1 + random() % 40);
      item.bytes = random() % (1 + random() % 2000);
    }
    std::vector<Interval> expected = found;
    ASSERT_EQ(pack(found), packByScanning(expected)) << "run " << run;
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].offset_bytes, expected[i].offset_bytes) << i;
  }
}

TEST(FillGaps, TakesWhatFitsBesideWhatStands) {
  const std::vector<Interval> fixed{{0, 9, 64, 0}, {0, 4, 128, 64}};
  std::vector<Interval> items{{3, 5, 64, 0}, {5, 6, 64, 0}, {6, 8, 128, 0}, {5, 5, 65, 0}};
  EXPECT_EQ(fillGaps(fixed, 192, items), (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(items[2].offset_bytes, 64);
  EXPECT_EQ(items[3].offset_bytes, 64);
}

TEST(Pack, FillsGapsUpToTheLastByteOfTheLimitAndNoFurther) {
  const std::vector<Interval> fixed{{0, 9, 64, 0}};
  std::vector<Interval> items{{0, 9, 65, 0}};
  EXPECT_EQ(fillGaps(fixed, 192, items), std::vector<bool>{true});
  EXPECT_EQ(fillGaps(fixed, 191, items), std::vector<bool>{false});
}

// What packing looks at, for n activations that all wait for backward, and for n values that die young.
TEST(Pack, LooksAtHardlyMoreForEachOfManyThanForEachOfFew) {
  for (const bool waits : {true, false}) {
    const auto stepsPerItem = [&](int64_t n) {
      std::vector<Interval> items;
      for (int64_t k = 0; k < n; ++k) items.push_back({k, waits ? 2 * n - k : k + 1 + k % 5, 64 * (1 + k % 7), 0});
      int64_t steps = 0;
      pack(items, &steps);
      return static_cast<double>(steps) / static_cast<double>(n);
    };
    EXPECT_LT(stepsPerItem(32'000), 2 * stepsPerItem(1'000)) << waits;
  }
}

}  // namespace
}  // namespace abele::plan
