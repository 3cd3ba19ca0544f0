// The text of a plan reads back as the plan, and no text does harm.
#include <gtest/gtest.h>

#include <random>

#include "../../support/random_graph.h"
#include "../../support/random_text.h"
#include "base/error.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "plan/cost.h"
#include "plan/plan.h"

namespace abele::plan {
namespace {

constexpr schedule::ScheduleKind kTraining[] = {
    schedule::ScheduleKind::kSharded,     schedule::ScheduleKind::k1F1B,       schedule::ScheduleKind::kGPipe,
    schedule::ScheduleKind::kInterleaved, schedule::ScheduleKind::kZeroBubble, schedule::ScheduleKind::kZeroBubble2};

struct Case {
  ir::Graph graph;
  Plan plan;
};

Case randomCase(uint32_t seed) {
  std::mt19937 random(seed);
  Case c{.graph = test::RandomGraph(seed).make(), .plan = {}};
  passes::PassContext context;
  context.optimizer.kind = passes::OptimizerRules::Kind::kAdam;
  context.optimizer.groups = {{}};
  for (const ir::External& external : c.graph.externals)
    if (external.trainable) context.optimizer.group_of[external.name] = 0;
  PlanOptions options{.schedule = kTraining[random() % std::size(kTraining)],
                      .device_iterations = 1 + static_cast<int64_t>(random() % 2),
                      .accumulation = 4 + static_cast<int64_t>(random() % 4)};
  passes::runPipeline(c.graph, context,
                      {.passes = passes::defaultPipeline(
                           {.training = true, .splits_weight_gradients = schedule::splitsBackward(options.schedule)})});
  if (random() % 2)
    for (size_t s = 0; s < c.graph.stages.size(); ++s) c.graph.stages[s].device = static_cast<int32_t>(s % 2);
  if (random() % 2) {
    options.costs = estimateCosts(c.graph);
    options.hop_ns = static_cast<int64_t>(random() % 100);
  }
  for (TensorLocation* l : {&options.locations.weights, &options.locations.optimizer_state,
                            &options.locations.accumulators, &options.locations.activations})
    if (random() % 3 == 0) *l = {random() % 2 == 0, static_cast<int64_t>(random() % 40)};
  options.locations.fetch_ahead = random() % 2;
  if (random() % 4 == 0) options.num_devices = 16;
  if (random() % 4 == 0) options.alignment = 512;
  if (random() % 4 == 0) options.most_held.assign(c.graph.stages.size(), 1 + static_cast<int64_t>(random() % 9));
  c.plan = makePlan(c.graph, options);
  return c;
}

TEST(PlanText, ReadsBackAsTheSamePlan) {
  int off_chip = 0, several_stages = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Case c = randomCase(seed);
    const std::string text = print(c.plan);
    ASSERT_EQ(verify(c.plan, c.graph), std::vector<std::string>{}) << text;
    const Plan read = parse(text);
    ASSERT_TRUE(read == c.plan) << "seed " << seed << "\n" << text << "\n" << print(read);
    ASSERT_EQ(print(read), text);
    off_chip += !c.plan.off_chip.empty();
    several_stages += c.plan.worker_of.size() > c.plan.device_of.size();
  }
  EXPECT_GT(off_chip, 20);
  EXPECT_GT(several_stages, 5);
}

TEST(PlanText, DamagedTextsAreReadOrRefused) {
  int num_read = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const Case c = randomCase(seed % 20);
    const std::string text = test::damaged(print(c.plan), random);
    try {
      const Plan read = parse(text);
      ++num_read;
      ASSERT_TRUE(parse(print(read)) == read) << text;
      verify(read, c.graph);
    } catch (const UserError& error) {
      ASSERT_EQ(error.code(), ErrorCode::E0202);
    }
  }
  EXPECT_GT(num_read, 300);
}

std::string mistakes(const std::string& text) {
  try {
    parse(text);
  } catch (const UserError& error) {
    return error.message().found;
  }
  return "none";
}

TEST(PlanText, TellsAllMistakesWithTheirLines) {
  EXPECT_EQ(mistakes(""), "line 1: expected 'plan SCHEDULE'");
  EXPECT_EQ(mistakes("plan 2f2b"), "line 1: unknown schedule '2f2b'");
  EXPECT_EQ(mistakes("plan 1f1b device_iterations=1 accumulation=1\n"
                     "  worker 0 device=0 persistent=-4 transient=0\n"
                     "  stage 0 worker=0 frames=1 frame=64 users=[X0]\n"
                     "  %3 stack stage=0\n"
                     "  %4 stash at=0\n"
                     "worker 0: F0 B1.0\n"),
            "line 2: negative number at '-4 transient=0'\n"
            "line 3: expected an action or task (F, B, W or U) at 'X0]'\n"
            "line 4: unknown place 'stack' of a value\n"
            "line 5: %4 needs a stage\n"
            "line 6: there is no stage 1");
  EXPECT_EQ(mistakes("plan sharded device_iterations=1 accumulation=1\n"
                     "  worker 0 device=0 persistent=0 transient=0\n"
                     "  stage 0 worker=0 frames=1 frame=0\n"
                     "  stage 1 worker=0 frames=1 frame=0\n"
                     "worker 0: F0\n"),
            "line 5: worker 0 has 2 stages: name them, as in F1.0");
}

TEST(PlanText, APlanOfAnotherGraphIsFound) {
  const Case c = randomCase(3), other = randomCase(4);
  ASSERT_NE(c.graph.values.size(), other.graph.values.size());
  EXPECT_FALSE(verify(c.plan, other.graph).empty());
  Plan plan = c.plan;
  plan.schedule.workers[0].erase(plan.schedule.workers[0].begin());
  EXPECT_FALSE(verify(plan, c.graph).empty());
}

}  // namespace
}  // namespace abele::plan
