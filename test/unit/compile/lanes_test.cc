// How many micro-batches lie side by side where nobody asked for a number.
#include "compile/lanes.h"

#include <numeric>

#include <gtest/gtest.h>

#include "../../support/chain_of_calls.h"
#include "plan/cost.h"

namespace abele::host {
namespace {

ProgramOptions optionsOf(int64_t micro_batches, int64_t lanes = 0) {
  ProgramOptions options;
  options.device_iterations = micro_batches;
  options.lanes = lanes;
  return options;
}

LaneChoice choose(const ir::Graph& graph, const ProgramOptions& options, bool watched = false) {
  return planWithLanes(graph,
                       {.schedule = plan::ScheduleKind::kForward, .device_iterations = options.device_iterations},
                       options, watched);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(LaneChoice, ADeviceAloneTakesAllWhereCallsAreSmall) {
  const LaneChoice small = choose(test::chainOfCalls(1, 16), optionsOf(8));
  EXPECT_EQ(small.plan.options.lanes, 8);
  EXPECT_EQ(small.plan.options.device_iterations, 1);
  EXPECT_TRUE(contains(small.reason, "8 of 8 side by side are predicted to take ")) << small.reason;
  const LaneChoice large = choose(test::chainOfCalls(1, 65536), optionsOf(8));
  EXPECT_EQ(large.plan.options.lanes, 1);
  EXPECT_TRUE(contains(large.reason, "no number is predicted to save much: 8 of 8")) << large.reason;
}

TEST(LaneChoice, APipelineTakesTheNumberWithTheLeastPredictedStep) {
  for (const int rows : {16, 64, 256, 1024}) {
    const ir::Graph graph = test::chainOfCalls(2, rows);
    const ProgramOptions options = optionsOf(12);
    const LaneChoice choice = choose(graph, options);
    const plan::LaneCosts costs = plan::laneCosts(graph);
    const auto predicted = [&](int64_t lanes) {
      return plan::predictStepNs(
          graph, {.schedule = plan::ScheduleKind::kForward, .device_iterations = 12 / lanes, .lanes = lanes}, costs);
    };
    for (const int64_t lanes : {1, 2, 3, 4, 6, 12})
      EXPECT_LE(0.95 * static_cast<double>(predicted(choice.plan.options.lanes)), static_cast<double>(predicted(lanes)))
          << choice.reason << ", rows " << rows << ", lanes " << lanes;
    EXPECT_EQ(choice.plan.options.lanes * choice.plan.schedule.micro_batches, 12);
  }
  const int64_t in_pipeline = choose(test::chainOfCalls(2, 64), optionsOf(8)).plan.options.lanes;
  EXPECT_GT(in_pipeline, 1);
  EXPECT_LT(in_pipeline, 8);  // the second device would wait for all of them
}

// Each process chooses by itself: what they run must be the same.
TEST(LaneChoice, SeveralProcessesHaveWhatOneHas) {
  const ir::Graph graph = test::chainOfCalls(2, 64);
  ProgramOptions options = optionsOf(8);
  const int64_t alone = choose(graph, options).plan.options.lanes;
  EXPECT_GT(alone, 1);
  options.processes.count = 2;
  for (options.processes.index = 0; options.processes.index < 2; ++options.processes.index)
    EXPECT_EQ(choose(graph, options).plan.options.lanes, alone);
}

TEST(LaneChoice, MemoryIsBounded) {
  const ir::Graph graph = test::chainOfCalls(1, 256);
  const ProgramOptions options = optionsOf(256);
  const LaneChoice choice = choose(graph, options), plain = choose(graph, optionsOf(256, 1));
  EXPECT_GT(choice.plan.options.lanes, 1);
  EXPECT_LT(choice.plan.options.lanes, 256);
  const auto bytesOf = [](const plan::Plan& plan) { return plan::peakDeviceBytes(plan).at(0); };
  EXPECT_LE(bytesOf(choice.plan), bytesOf(plain.plan) + (int64_t{8} << 20));
  EXPECT_EQ(choose(graph, optionsOf(256, 256)).plan.options.lanes, 256);  // whoever asks gets them
}

TEST(LaneChoice, ThereAreNoneForAReason) {
  const ir::Graph graph = test::chainOfCalls(2, 16);
  const auto reasonOf = [&](ProgramOptions options, bool watched = false) {
    const LaneChoice choice = choose(graph, options, watched);
    EXPECT_EQ(choice.plan.options.lanes, 1);
    return choice.reason;
  };
  EXPECT_EQ(reasonOf(optionsOf(1)), "there is one micro-batch");
  EXPECT_EQ(reasonOf(optionsOf(8, 1)), "abele.lanes is 1");
  EXPECT_EQ(reasonOf(optionsOf(8), /*watched=*/true), "each micro-batch is compared with eager PyTorch");
  ProgramOptions options = optionsOf(8);
  options.fusion = Fusion::kOff;
  EXPECT_EQ(reasonOf(options), "fusion is off");
  options = optionsOf(8);
  options.device_memory.every = 1 << 30;
  EXPECT_EQ(reasonOf(options), "the memory of devices is limited");
}

}  // namespace
}  // namespace abele::host
