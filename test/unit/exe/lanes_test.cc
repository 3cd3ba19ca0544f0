// Micro-batches side by side: what the builder makes of a program, and what a reader refuses.
#include <gtest/gtest.h>

#include "base/error.h"
#include "exe/build/build.h"
#include "ir/text.h"
#include "plan/lanes.h"

namespace abele::exe {
namespace {

// 16 rows of 4 numbers are 256 bytes, a row of sums 64: both of them follow each other without a gap. %4 is the same
// for every micro-batch.
constexpr const char* kGraph = R"(
graph @main {
  stage 0 "s0" {device=0}
  external 0 parameter "w": f32[4]
  input %0 "x": f32[16,4] = argument(0)
  input %1 "w": f32[4] = parameter(0)
  %2: f32[16,4] = aten.mul.Tensor(%0, %1) {stage=0}
  %3: f32[16] = aten.sum.dim_IntList(%2) {stage=0}
  %4: f32[4] = aten.exp(%1) {stage=0}
  %5: f32[3] = aten.odd(%3, %4) {stage=0}
  output result(0) %5
}
)";

Executable executableOf(const std::string& text, int64_t lanes) {
  const ir::Graph graph = ir::parse(text);
  EXPECT_EQ(plan::whyNoLanes(graph), "");
  return build(
      graph, plan::makePlan(graph, {.schedule = plan::ScheduleKind::kForward, .device_iterations = 2, .lanes = lanes}));
}

std::vector<std::string> callsOf(const Executable& executable) {
  std::vector<std::string> calls;
  for (const Instruction& i : executable.segments[0].instructions)
    calls.push_back(cat(i.op.substr(i.op.find(':') + 2), i.joins > 0 ? cat(" joins ", i.joins) : cat(" ", i.lane)));
  return calls;
}

TEST(Lanes, AnInstructionOverAllPrecedesOneForEach) {
  const Executable executable = executableOf(kGraph, 3);
  EXPECT_EQ(verify(executable), std::vector<std::string>{});
  EXPECT_EQ(executable.micro_batches, 6);
  EXPECT_EQ(executable.device_iterations, 6);
  const std::vector<std::string> expected = {"mul.Tensor joins 3",
                                             "mul.Tensor 0",
                                             "mul.Tensor 1",
                                             "mul.Tensor 2",
                                             "sum.dim_IntList joins 3",
                                             "sum.dim_IntList 0",
                                             "sum.dim_IntList 1",
                                             "sum.dim_IntList 2",
                                             "exp 0",  // once
                                             "odd 0",
                                             "odd 1",
                                             "odd 2",  // three numbers leave a gap
                                             "emit 0",
                                             "emit 1",
                                             "emit 2"};
  EXPECT_EQ(callsOf(executable), expected);
  const Instruction& joint = executable.segments[0].instructions[0];
  EXPECT_EQ(executable.slots[joint.args[0].i].type.str(), "f32[48,4]");
  EXPECT_EQ(executable.slots[joint.args[1].i].type.str(), "f32[4]");
  EXPECT_EQ(executable.slots[joint.results[0][0]].type.str(), "f32[48,4]");
}

// Where an operator reduces the rows of a micro-batch, lanes have a dimension of their own.
TEST(Lanes, AReductionOfRowsGetsADimensionOfLanes) {
  const Executable executable = executableOf(R"(
graph @main {
  stage 0 "s0" {device=0}
  input %0 "x": f32[16,64] = argument(0)
  %1: f32[1,64] = aten.sum.dim_IntList(%0, [0], true, none) {stage=0}
  %2: f32[16] = aten.mean.dim(%0, [-1], false, none) {stage=0}
  %3: f32[64] = aten.amax(%0, [-2], false) {stage=0}
  %4: f32[] = aten.sum.dim_IntList(%0, none, false, none) {stage=0}
  output result(0) %1
  output result(1) %2
  output result(2) %3
  output result(3) %4
}
)",
                                             3);
  EXPECT_EQ(verify(executable), std::vector<std::string>{});
  EXPECT_EQ(parse(print(executable)), executable);
  std::vector<std::string> joints;
  for (const Instruction& i : executable.segments[0].instructions) {
    if (i.joins == 0) continue;
    std::string dims;
    for (const int64_t dim : i.args[1].ints) dims += cat(" ", dim);
    joints.push_back(cat(i.op, " ", executable.slots[i.args[0].i].type.str(), dims, " -> ",
                         executable.slots[i.results[0][0]].type.str()));
  }
  const std::vector<std::string> expected = {"aten::sum.dim_IntList f32[3,16,64] 1 -> f32[3,1,64]",
                                             "aten::mean.dim f32[48,64] -1 -> f32[48]",
                                             "aten::amax f32[3,16,64] -2 -> f32[3,64]"};
  EXPECT_EQ(joints, expected);  // a single number of each leaves a gap
}

// Two processes. Of the first one's values three numbers leave a gap, %4 is the same for every micro-batch, and so is
// %5 until the second process writes into what it has received.
constexpr const char* kApart = R"(
graph @main {
  stage 0 "s0" {device=0, space=0}
  stage 1 "s1" {device=1, space=1}
  external 0 parameter "w": f32[16]
  input %0 "x": f32[16,4] = argument(0)
  input %1 "w": f32[16] = parameter(0)
  %2: f32[16,4] = aten.relu(%0) {stage=0}
  %3: f32[3] = aten.odd(%0) {stage=0}
  %4: f32[16] = aten.exp(%1) {stage=0}
  %5: f32[16] = aten.sin(%1) {stage=0}
  %6: f32[16,4] = abele.transfer(none, %2) {stage=1}
  %7: f32[3] = abele.transfer(none, %3) {stage=1}
  %8: f32[16] = abele.transfer(none, %4) {stage=1}
  %9: f32[16] = abele.transfer(none, %5) {stage=1}
  _ = aten.add_(%9, %6) writes(0: %9 -> %10: f32[16]) {stage=1}
  %11: f32[4] = aten.end(%6, %7, %8, %10) {stage=1}
  output result(0) %11
}
)";

std::vector<std::string> typesIn(const Executable& executable, const std::string& op) {
  std::vector<std::string> types;
  for (const Segment& segment : executable.segments)
    for (const Instruction& i : segment.instructions)
      if (i.op == op)
        for (const int64_t slot : i.args[0].ints) types.push_back(executable.slots[slot].type.str());
  return types;
}

TEST(Lanes, OneMessageHasTheValuesOfAll) {
  const ir::Graph graph = ir::parse(kApart);
  const plan::Plan plan =
      plan::makePlan(graph, {.schedule = plan::ScheduleKind::kForward, .device_iterations = 3, .lanes = 2});
  Executable executable = build(graph, plan, {.devices_per_process = 1});
  EXPECT_EQ(verify(executable), std::vector<std::string>{});
  EXPECT_EQ(parse(print(executable)), executable);
  const std::vector<std::string> expected = {"f32[32,4]", "f32[3]", "f32[3]", "f32[16]", "f32[16]", "f32[16]"};
  EXPECT_EQ(typesIn(executable, "abele::send"), expected);
  EXPECT_EQ(typesIn(executable, "abele::receive"), expected);
  for (const WorkerProgram& worker : executable.workers) {
    ASSERT_EQ(worker.actions.size(), 3U);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(worker.actions[i].micro_batch, static_cast<int32_t>(2 * i));
  }
  for (Segment& segment : executable.segments)
    for (Instruction& i : segment.instructions)
      if (i.op == "abele::receive") {
        i.args[0].ints.erase(i.args[0].ints.begin() + 2);
        i.writes.erase(i.writes.begin() + 2);
      }
  EXPECT_EQ(verify(executable), (std::vector<std::string>{"link 0: message 0 is not sent as it is received"}));
}

// In one process the same values are copied, at once where that is one copy.
TEST(Lanes, WhatIsTransferredWithinAProcessIsCopied) {
  const ir::Graph graph = ir::parse(kApart);
  const Executable executable = build(
      graph, plan::makePlan(graph, {.schedule = plan::ScheduleKind::kForward, .device_iterations = 3, .lanes = 2}));
  EXPECT_EQ(verify(executable), std::vector<std::string>{});
  std::vector<std::string> copies;
  for (const Segment& segment : executable.segments)
    for (const Instruction& i : segment.instructions)
      if (i.op == "abele::transfer")
        copies.push_back(
            cat(executable.slots[i.args[0].i].type.str(), " ", i.joins > 0 ? cat("of ", i.joins) : cat(i.lane)));
  EXPECT_EQ(copies, (std::vector<std::string>{"f32[32,4] of 2", "f32[16,4] 0", "f32[16,4] 1", "f32[3] 0", "f32[3] 1",
                                              "f32[16] 0", "f32[16] 0", "f32[16] 1"}));
}

TEST(Lanes, TextAndFileReadBack) {
  const Executable executable = executableOf(kGraph, 3);
  EXPECT_EQ(parse(print(executable)), executable);
  EXPECT_EQ(decode(encode(executable)), executable);
}

TEST(Lanes, APlanReadsBack) {
  const ir::Graph graph = ir::parse(kGraph);
  const plan::Plan plan =
      plan::makePlan(graph, {.schedule = plan::ScheduleKind::kForward, .device_iterations = 2, .lanes = 3});
  EXPECT_EQ(plan::parse(plan::print(plan)), plan);
  EXPECT_EQ(plan.placement[2].lane_bytes, 256);
  EXPECT_EQ(plan.placement[4].lane_bytes, 0);
}

TEST(Lanes, DamageIsRefused) {
  const Executable good = executableOf(kGraph, 3);
  const auto refuses = [&](auto&& damage) {
    Executable bad = good;
    damage(bad);
    return !verify(bad).empty();
  };
  auto instruction = [](Executable& e, size_t i) -> Instruction& { return e.segments[0].instructions[i]; };
  EXPECT_TRUE(refuses([](Executable& e) { e.lanes = 4; }));
  EXPECT_TRUE(refuses([](Executable& e) { e.lanes = 0; }));
  EXPECT_TRUE(refuses([&](Executable& e) { instruction(e, 0).joins = 2; }));
  EXPECT_TRUE(refuses([&](Executable& e) { instruction(e, 1).lane = 1; }));
  EXPECT_TRUE(refuses([&](Executable& e) { instruction(e, 1).lane = 3; }));
  EXPECT_TRUE(refuses([&](Executable& e) { instruction(e, 1).op = "aten::other"; }));
  // The rows of all lanes, read for the last one alone, would reach behind the caller's tensor.
  EXPECT_TRUE(refuses([&](Executable& e) { instruction(e, 3).args[0] = instruction(e, 0).args[0]; }));
  EXPECT_TRUE(refuses([](Executable& e) { e.workers[0].actions[1].micro_batch = 4; }));
}

std::string whyNot(const std::string& nodes) {
  return plan::whyNoLanes(ir::parse(cat(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  external 0 parameter "w": f32[4] {trainable}
  external 1 buffer "mean": f32[4]
  external 2 accumulator "sum": f32[4] {owner=0}
  input %0 "x": f32[4] = argument(0)
  input %1 "w": f32[4] = parameter(0)
  input %2 "mean": f32[4] = buffer(1)
  input %3 "sum": f32[4] = accumulator(2)
)",
                                        nodes, "}\n")));
}

TEST(Lanes, ProgramsWhoseMicroBatchesDependOnEachOtherHaveNone) {
  EXPECT_EQ(whyNot("  %4: f32[4] = aten.a(%0) {stage=0}\n"), "");
  EXPECT_EQ(whyNot("  _ = aten.a_(%2, %0) writes(0: %2 -> %4: f32[4]) {stage=0, src=\"net.py:7\"}\n"),
            "every micro-batch writes mean: aten::a_ (net.py:7)");
  EXPECT_EQ(whyNot("  %4: f32[4] = aten.a(%0) {stage=0}\n  output update(1) %4\n"), "every micro-batch writes mean");
  EXPECT_EQ(whyNot("  %4: f32[4] = aten.a(%0) {stage=0}\n"
                   "  _ = abele.accumulate(%3, %4) writes(0: %3 -> %5: f32[4]) {dir=bwd, stage=0}\n"),
            "");
  EXPECT_EQ(whyNot("  %4: f32[4] = aten.a(%0) {stage=0}\n"
                   "  _ = abele.accumulate(%3, %4) writes(0: %3 -> %5: f32[4]) {dir=bwd, stage=0}\n"
                   "  _ = abele.accumulate(%5, %4) writes(0: %5 -> %6: f32[4]) {dir=bwd, stage=0}\n"),
            "several gradients are added to sum");
}

}  // namespace
}  // namespace abele::exe
