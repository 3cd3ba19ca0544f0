#include "split/default_schedule.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/cat.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "plan/cost.h"

namespace abele::split {
namespace {

// A chain of matrix products with gradients of their weights: stage s on device s % devices. weight: rows of the first
// stage's weight, so that its device is the fullest one. kept: rows of what each stage keeps for its backward alone.
ir::Graph graphOf(int stages, int devices, int weight, bool trains_weights = true, int kept = 0) {
  std::string text = "graph @main {training} {\n";
  for (int s = 0; s < stages; ++s) text += cat("  stage ", s, " \"s", s, "\" {device=", s % devices, "}\n");
  const auto type = [&](int s) { return cat("f32[", s == 0 ? weight : 64, ",64]"); };
  for (int s = 0; s < stages; ++s)
    text += cat("  external ", s, " parameter \"w", s, "\": ", type(s), " {trainable}\n");
  for (int s = 0; s < stages; ++s)
    text += cat("  external ", stages + s, " accumulator \"a", s, "\": ", type(s), " {owner=", s, "}\n");
  text += "  input %0 \"x\": f32[64,64] = argument(0)\n";
  for (int s = 0; s < stages; ++s) text += cat("  input %", 1 + s, ": ", type(s), " = parameter(", s, ")\n");
  const auto sum = [&](int s) { return 1 + stages + s; };
  for (int s = 0; s < stages; ++s)
    text += cat("  input %", sum(s), ": ", type(s), " = accumulator(", stages + s, ")\n");
  int next = 1 + 2 * stages;
  std::vector<int> made{0};
  for (int s = 0; s < stages; ++s, ++next) {
    text += cat("  %", next, ": f32[64,64] = aten.f(%", made.back(), ", %", 1 + s, ") {stage=", s, "}\n");
    made.push_back(next);
  }
  const int first_kept = next;
  for (int s = 0; kept > 0 && s < stages; ++s, ++next)
    text +=
        cat("  %", next, ": f32[", kept, ",64] = aten.k(%", made[static_cast<size_t>(s) + 1], ") {stage=", s, "}\n");
  std::string updates;
  int gradient = made.back();
  for (int s = stages - 1; s >= 0; --s) {
    const int incoming = gradient;
    if (s > 0 || kept > 0) {
      gradient = next++;
      text += cat("  %", gradient, ": f32[64,64] = aten.g(%", incoming, ", %", 1 + s,
                  kept > 0 ? cat(", %", first_kept + s) : "", ") {stage=", s, ", dir=bwd}\n");
    }
    if (!trains_weights) continue;
    text += cat("  %", next, ": ", type(s), " = aten.h(%", incoming, ", %", made[static_cast<size_t>(s)],
                ") {stage=", s, ", dir=bwd}\n  _ = abele.accumulate(%", sum(s), ", %", next, ") writes(0: %", sum(s),
                " -> %", next + 1, ": ", type(s), ") {stage=", s, ", dir=bwd}\n");
    updates += cat("  output update(", stages + s, ") %", next + 1, "\n");
    next += 2;
  }
  if (!trains_weights || kept > 0) updates += cat("  output result(0) %", gradient, "\n");
  return ir::parse(cat(text, "  output loss %", made.back(), "\n", updates, "}\n"));
}

DefaultSchedule choose(const ir::Graph& graph, const DefaultScheduleOptions& options) {
  ir::Graph split = graph;
  passes::PassContext context;
  passes::splitWeightGradient(split, context);
  return defaultSchedule(graph, split, options);
}

DefaultScheduleOptions withCosts(int stages, int64_t accumulation, int64_t weight_grad_ns = 1'000'000) {
  DefaultScheduleOptions options;
  options.plan.accumulation = accumulation;
  options.plan.costs.assign(static_cast<size_t>(stages), {1'000'000, 2'000'000 - weight_grad_ns, weight_grad_ns, 0});
  return options;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

constexpr int kWide = 4096;  // rows of a weight of a mebibyte: more than all activations

TEST(DefaultSchedule, TakesAFasterOneThatNeedsNoMoreMemory) {
  const DefaultSchedule choice = choose(graphOf(2, 2, kWide), withCosts(2, 8));
  EXPECT_EQ(choice.schedule, schedule::ScheduleKind::kZeroBubble) << choice.reason;
  EXPECT_TRUE(contains(choice.reason, "zero-bubble is predicted to take")) << choice.reason;
  EXPECT_TRUE(contains(choice.reason, "1f1b 27.")) << choice.reason;
}

TEST(DefaultSchedule, CountsWhatLinksTake) {
  DefaultScheduleOptions options = withCosts(2, 8);
  options.limits.every = int64_t{1} << 30;
  const ir::Graph graph = graphOf(2, 2, kWide);
  EXPECT_EQ(choose(graph, options).schedule, schedule::ScheduleKind::kZeroBubble);
  // A schedule that holds more micro-batches waits for messages less often.
  options.machine.links = {{.name = "far", .latency_ns = 10'000'000, .bytes_per_s = 1'000'000'000}};
  const DefaultSchedule far = choose(graph, options);
  EXPECT_EQ(far.schedule, schedule::ScheduleKind::kZeroBubble2) << far.reason;
  // Devices that share memory hand over at no cost.
  options.machine.space_devices = 2;
  EXPECT_EQ(choose(graph, options).schedule, schedule::ScheduleKind::kZeroBubble);
}

TEST(DefaultSchedule, StaysWithoutWeightGradients) {
  const DefaultSchedule choice = choose(graphOf(2, 2, kWide, /*trains_weights=*/false), withCosts(2, 8));
  EXPECT_EQ(choice.schedule, schedule::ScheduleKind::k1F1B) << choice.reason;
}

TEST(DefaultSchedule, StaysForLittle) {
  // One of 256 micro-batches waits: less than what estimates can tell.
  EXPECT_EQ(choose(graphOf(2, 2, kWide), withCosts(2, 256)).reason,
            "no order of the work can be noticeably faster than 1f1b");
  // Little of the backward can wait.
  EXPECT_EQ(choose(graphOf(2, 2, kWide), withCosts(2, 8, 1'000)).schedule, schedule::ScheduleKind::k1F1B);
}

TEST(DefaultSchedule, SpendsNoMemoryThatNobodyGranted) {
  const ir::Graph graph = graphOf(3, 3, /*weight=*/64);
  DefaultScheduleOptions options = withCosts(3, 8);
  // The fastest order does not fit; one that holds less does.
  const DefaultSchedule careful = choose(graph, options);
  EXPECT_EQ(careful.schedule, schedule::ScheduleKind::kZeroBubble) << careful.reason;
  EXPECT_TRUE(contains(careful.reason, "zero-bubble within the memory")) << careful.reason;
  ir::Graph split = graph;
  passes::PassContext context;
  passes::splitWeightGradient(split, context);
  const auto most = [](const std::vector<int64_t>& bytes) { return *std::max_element(bytes.begin(), bytes.end()); };
  plan::PlanOptions taken = options.plan;
  const int64_t plain = most(plan::peakDeviceBytes(plan::makePlan(graph, taken)));
  taken.schedule = schedule::ScheduleKind::kZeroBubble;
  EXPECT_GT(most(plan::peakDeviceBytes(plan::makePlan(split, taken))), plain + plain / 64);
  taken.most_held = careful.most_held;
  EXPECT_LE(most(plan::peakDeviceBytes(plan::makePlan(split, taken))), plain + plain / 64);

  options.limits.every = int64_t{1} << 30;
  EXPECT_NE(choose(graph, options).schedule, schedule::ScheduleKind::k1F1B);
  options.limits = {.every = 1};
  const DefaultSchedule tight = choose(graph, options);
  EXPECT_EQ(tight.schedule, schedule::ScheduleKind::k1F1B);
  EXPECT_TRUE(contains(tight.reason, "whose limit is")) << tight.reason;
}

// Memory of forward's values is free after backward: neither waiting weight gradients nor the previous stage, which
// reads a gradient later, hold it. One more frame of it would not fit.
TEST(DefaultSchedule, LateWeightGradientsHoldOnlyWhatTheyRead) {
  const ir::Graph graph = graphOf(2, 2, /*weight=*/64, /*trains_weights=*/true, /*kept=*/2048);
  const DefaultSchedule choice = choose(graph, withCosts(2, 8));
  EXPECT_EQ(choice.schedule, schedule::ScheduleKind::kZeroBubble) << choice.reason;
  EXPECT_TRUE(contains(choice.reason, "zero-bubble is predicted to take")) << choice.reason;
  ir::Graph split = graph;
  passes::PassContext context;
  passes::splitWeightGradient(split, context);
  const int64_t frame = 2048 * 64 * 4;
  for (const schedule::ScheduleKind kind : {schedule::ScheduleKind::k1F1B, schedule::ScheduleKind::kZeroBubble}) {
    plan::PlanOptions options = withCosts(2, 8).plan;
    options.schedule = kind;
    const plan::Plan plan = plan::makePlan(schedule::splitsBackward(kind) ? split : graph, options);
    EXPECT_EQ(plan.frames, (std::vector<int64_t>{2, 1})) << schedule::scheduleName(kind);
    EXPECT_LT(plan::peakDeviceBytes(plan).back(), 2 * frame) << schedule::scheduleName(kind);
    const plan::Prediction predicted = plan::predict(plan::chainOf(split, options, options.costs),
                                                     {.schedule = kind, .accumulation = options.accumulation});
    for (size_t w = 0; w < plan.device_of.size(); ++w)
      EXPECT_EQ(predicted.run.workers[w].peak_bytes, plan::peakDeviceBytes(plan)[w]) << schedule::scheduleName(kind);
  }
}

TEST(DefaultSchedule, KnowsThatDevicesShareCores) {
  DefaultScheduleOptions options = withCosts(4, 8);
  EXPECT_EQ(choose(graphOf(4, 4, kWide), options).schedule, schedule::ScheduleKind::kZeroBubble);
  // Whoever waits leaves its core to others.
  options.cores = 1;
  EXPECT_EQ(choose(graphOf(4, 4, kWide), options).schedule, schedule::ScheduleKind::k1F1B);
}

TEST(DefaultSchedule, InterleavesStagesThatAreDealtRound) {
  DefaultScheduleOptions options = withCosts(8, 8, /*weight_grad_ns=*/0);
  options.limits.every = int64_t{1} << 30;
  const DefaultSchedule dealt = choose(graphOf(8, 4, kWide), options);
  EXPECT_EQ(dealt.schedule, schedule::ScheduleKind::kInterleaved) << dealt.reason;
  EXPECT_EQ(choose(graphOf(8, 8, kWide), options).schedule, schedule::ScheduleKind::k1F1B);
}

TEST(DefaultSchedule, DoesNotLookWhereItCannotMatter) {
  EXPECT_EQ(choose(graphOf(3, 1, kWide), withCosts(3, 8)).reason, "one device");
  DefaultScheduleOptions moving = withCosts(2, 8);
  moving.plan.locations.weights.off_chip = true;
  EXPECT_TRUE(contains(choose(graphOf(2, 2, kWide), moving).reason, "off chip"));
  EXPECT_TRUE(contains(choose(graphOf(2, 2, kWide), withCosts(2, 100'000)).reason, "too many actions"));
}

TEST(DefaultSchedule, IsTheSameEveryTime) {
  DefaultScheduleOptions options;
  options.plan.accumulation = 8;
  const ir::Graph graph = graphOf(3, 3, kWide);
  const DefaultSchedule first = choose(graph, options);
  for (int i = 0; i < 3; ++i) {
    const DefaultSchedule again = choose(graph, options);
    EXPECT_EQ(again.schedule, first.schedule);
    EXPECT_EQ(again.reason, first.reason);
  }
}

}  // namespace
}  // namespace abele::split
