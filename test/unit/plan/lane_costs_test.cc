// Micro-batches side by side: what they are estimated to have in common, and the step that is predicted with them.
#include <gtest/gtest.h>

#include "../../support/chain_of_calls.h"
#include "base/cat.h"
#include "ir/text.h"
#include "plan/cost.h"
#include "plan/lanes.h"
#include "plan/operator_cost.h"

namespace abele::plan {
namespace {

constexpr const char* kGraph = R"(
graph @main {
  stage 0 "s0" {device=0}
  external 0 parameter "w": f32[64,64]
  input %0 "x": f32[16,64] = argument(0)
  input %1 "w": f32[64,64] = parameter(0)
  input %2 "i": i64[16] = argument(1)
  %3: f32[16,64] = aten.mm(%0, %1) {stage=0}
  %4: f32[16] = aten.sum.dim_IntList(%3) {stage=0}
  %5: f32[64] = aten.exp(%1) {stage=0}
  %6: f32[1,64] = aten.sum.dim_IntList(%3) {stage=0}
  %7: f32[3] = aten.odd(%4, %5) {stage=0}
  %8: f32[16,64] = aten.index(%3, %2) {stage=0}
  %9: f32[64,64] = aten.mm(%8, %3) {stage=0}
  output result(0) %6
  output result(1) %7
  output result(2) %8
  output result(3) %9
}
)";

TEST(LaneCosts, CallsJoinWhereRowsFollowEachOtherAndStayRows) {
  const ir::Graph graph = ir::parse(kGraph);
  const LaneSharing sharing = sharingOfLanes(graph);
  std::vector<std::string> joined;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (sharing.joins[i]) joined.push_back(cat("%", graph.nodes[i].results[0][0]));
  // Not: what is the same for all, one row of sixteen, three numbers with a gap behind them, indices, sixteen rows that
  // become sixty-four.
  EXPECT_EQ(joined, (std::vector<std::string>{"%3", "%4"}));
  EXPECT_TRUE(sharing.varies[3] && sharing.varies[7]);
  EXPECT_FALSE(sharing.varies[1] || sharing.varies[5]);
}

TEST(LaneCosts, ACallOverAllTakesItsPreparationAndSharedOperandsOnce) {
  const ir::Graph graph = ir::parse(kGraph);
  const LaneSharing sharing = sharingOfLanes(graph);
  const auto nsOf = [&](size_t node) { return estimateNodeNs(graph, graph.nodes[node]); };
  EXPECT_EQ(estimateSharedNs(graph, graph.nodes[0], sharing.varies), 1000 + 64 * 64 * 4 / 20);
  EXPECT_EQ(estimateSharedNs(graph, graph.nodes[1], sharing.varies), 1000);
  const LaneCosts costs = laneCosts(graph);
  EXPECT_EQ(costs.each, estimateCosts(graph));
  EXPECT_EQ(costs.once[0].forward_ns, 1000 + 64 * 64 * 4 / 20 + 1000 + nsOf(2));
  EXPECT_EQ(costs.of(1), costs.each);
  EXPECT_EQ(costs.of(3)[0].forward_ns, 3 * costs.each[0].forward_ns - 2 * costs.once[0].forward_ns);
  // Of given times the same share.
  StageCost given = costs.each[0];
  given.forward_ns *= 10;
  EXPECT_NEAR(static_cast<double>(laneCosts(graph, {given}).once[0].forward_ns),
              10 * static_cast<double>(costs.once[0].forward_ns), 10);
}

// One call takes the gradients of all: what reduces rows, what adds up, small products. Not: a product of more rows
// than a kernel takes, a sum over rows that leaves a gap.
TEST(LaneCosts, GradientsOfAllAreOneCall) {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  external 0 parameter "w": f32[64,64] {trainable}
  external 1 accumulator "sum": f32[64,64] {owner=0}
  external 2 accumulator "bias": f32[64] {owner=0}
  external 3 accumulator "large": f32[64,64] {owner=0}
  input %0 "x": f32[16,64] = argument(0)
  input %1 "left": f32[64,16] = argument(1)
  input %2 "rows": f32[512,64] = argument(2)
  input %3 "columns": f32[64,512] = argument(3)
  input %4 "mean": f32[16,1] = argument(4)
  input %5 "sum": f32[64,64] = accumulator(1)
  input %6 "bias": f32[64] = accumulator(2)
  input %7 "large": f32[64,64] = accumulator(3)
  %8: f32[64] = aten.sum.dim_IntList(%0, [0], false, none) {dir=bwd, stage=0}
  %9: f32[1] = aten.sum.dim_IntList(%4, [0], false, none) {dir=bwd, stage=0}
  %10: f32[16,64], %11: f32[64], %12: f32[64] = aten.native_layer_norm_backward(%0, %0, [64], %4, %4, none, none, [true, true, true]) {dir=bwd, stage=0}
  _ = abele.accumulate(%6, %8) writes(0: %6 -> %13: f32[64]) {dir=bwd, stage=0}
  _ = abele.accumulate_product(%5, %1, %0) writes(0: %5 -> %14: f32[64,64]) {dir=bwd, stage=0}
  _ = abele.accumulate_product(%7, %3, %2) writes(0: %7 -> %15: f32[64,64]) {dir=bwd, stage=0}
}
)");
  const LaneSharing sharing = sharingOfLanes(graph);
  std::vector<size_t> joined;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (sharing.joins[i]) joined.push_back(i);
  EXPECT_EQ(joined, (std::vector<size_t>{0, 2, 3, 4}));
  // The sum is read and written once for all.
  EXPECT_EQ(estimateSharedNs(graph, graph.nodes[4], sharing.varies), 1000 + 2 * 64 * 64 * 4 / 20);
}

int64_t predicted(const ir::Graph& graph, int64_t lanes) {
  return predictStepNs(graph, {.schedule = ScheduleKind::kForward, .device_iterations = 8 / lanes, .lanes = lanes},
                       laneCosts(graph));
}

TEST(LaneCosts, ADeviceAloneSavesWithEachAndAPipelineWaitsForAll) {
  const ir::Graph alone = test::chainOfCalls(1, 64), pipeline = test::chainOfCalls(2, 64);
  EXPECT_LT(predicted(alone, 2), predicted(alone, 1));
  EXPECT_LT(predicted(alone, 4), predicted(alone, 2));
  EXPECT_LT(predicted(alone, 8), predicted(alone, 4));
  EXPECT_LT(predicted(pipeline, 4), predicted(pipeline, 1));
  EXPECT_LT(predicted(pipeline, 4), predicted(pipeline, 8));  // the second device waits until the first has all
  const ir::Graph large = test::chainOfCalls(2, 65536);
  EXPECT_LT(predicted(large, 1), predicted(large, 2));
}

}  // namespace
}  // namespace abele::plan
