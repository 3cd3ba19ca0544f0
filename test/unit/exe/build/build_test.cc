#include "exe/build/build.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace abele::exe {
namespace {

// The indented lines after the line `first` of a printed executable.
std::string section(const std::string& text, const std::string& first) {
  const size_t at = text.find(first + "\n");
  if (at == std::string::npos) return "no " + first;
  std::string out;
  for (size_t i = at + first.size() + 1; text.compare(i, 4, "    ") == 0;) {
    const size_t end = text.find('\n', i) + 1;
    out += text.substr(i + 4, end - i - 4);
    i = end;
  }
  return out;
}

std::string buildText(const std::string& graph, const plan::PlanOptions& options) {
  const ir::Graph parsed = ir::parse(graph);
  const Executable executable = build(parsed, plan::makePlan(parsed, options));
  EXPECT_EQ(verify(executable), std::vector<std::string>{});
  return print(executable);
}

const plan::PlanOptions kInference{.schedule = schedule::ScheduleKind::kForward, .device_iterations = 3};

TEST(Build, ViewsVanishAndDyingOperandsAreUpdatedInPlace) {
  const std::string text = buildText(R"(
graph @main {
  stage 0 "s0" {device=0}
  input %0 "x": f32[4] = argument(0)
  %1: f32[4] = aten.a(%0) {stage=0}
  %2: f32[2] view(%1+2) = aten.slice(%1) {stage=0}
  _ = aten.relu_(%1) writes(0: %1 -> %3: f32[4] at f32[2]+2) {stage=0, src="net.py:7"}
  %4: f32[4] = aten.b(%3) {stage=0}
  output result(0) %4
}
)",
                                     kInference);
  EXPECT_EQ(section(text, "  segment 0 fwd/0"),
            "$2 = aten::a($0)\n"
            "none = aten::relu_($3) writes($3) source=0  # net.py:7\n"
            "$5 = aten::b($4)\n"
            "abele::emit($1, $5) writes($1)\n");
  EXPECT_NE(text.find("$3 %3 f32[2] group=1 at=8\n"), std::string::npos) << text;
}

TEST(Build, CopiesWhatLivesOnBehindAWrite) {
  const std::string text = buildText(R"(
graph @main {
  stage 0 "s0" {device=0}
  input %0 "x": f32[4] = argument(0)
  %1: f32[4] = aten.a(%0) {stage=0}
  _ = aten.relu_(%1) writes(0: %1 -> %2: f32[4]) {stage=0}
  _ = aten.relu_(%0) writes(0: %0 -> %3: f32[4]) {stage=0}
  %4: f32[4] = aten.b(%1, %2, %3) {stage=0}
  output result(0) %4
}
)",
                                     kInference);
  EXPECT_EQ(section(text, "  segment 0 fwd/0"),
            "$2 = aten::a($0)\n"
            "abele::copy($3, $2) writes($3)\n"
            "none = aten::relu_($3) writes($3)\n"
            "abele::copy($4, $0) writes($4)\n"
            "none = aten::relu_($4) writes($4)\n"
            "$5 = aten::b($2, $3, $4)\n"
            "abele::emit($1, $5) writes($1)\n");
}

TEST(Build, ResultsLeaveRightBehindTheirNode) {
  const std::string text = buildText(R"(
graph @main {
  stage 0 "s0" {device=0}
  input %0 "x": f32[4] = argument(0)
  %1: f32[4] = aten.a(%0) {stage=0}
  _ = aten.relu_(%1) writes(0: %1 -> %2: f32[4]) {stage=0}
  output result(0) %1
  output result(1) %0
  output result(2) %2
}
)",
                                     kInference);
  EXPECT_EQ(section(text, "  segment 0 fwd/0"),
            "abele::emit($2, $0) writes($2)\n"
            "$4 = aten::a($0)\n"
            "abele::emit($1, $4) writes($1)\n"
            "none = aten::relu_($5) writes($5)\n"
            "abele::emit($3, $5) writes($3)\n");
}

TEST(Build, WaitsForDataAndForFreeFrames) {
  const std::string text = buildText(R"(
graph @main {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  input %0 "x": f32[4] = argument(0)
  %1: f32[4] = aten.a(%0) {stage=0}
  %2: f32[4] = aten.b(%1) {stage=1}
  output result(0) %2
}
)",
                                     kInference);
  EXPECT_EQ(section(text, "  worker 0 device=0"),
            "fwd/0 micro_batch=0\nfwd/0 micro_batch=1\nfwd/0 micro_batch=2 wait(fwd/1>=1)\n");
  EXPECT_EQ(
      section(text, "  worker 1 device=1"),
      "fwd/1 micro_batch=0 wait(fwd/0>=1)\nfwd/1 micro_batch=1 wait(fwd/0>=2)\nfwd/1 micro_batch=2 wait(fwd/0>=3)\n");
}

// A buffer that two stages update, one micro-batch at a time.
TEST(Build, WaitsForTheStatisticsOfTheMicroBatchBefore) {
  const std::string text = buildText(R"(
graph @main {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  external 0 buffer "mean": f32[4]
  input %0 "x": f32[4] = argument(0)
  input %1 "mean": f32[4] = buffer(0)
  %2: f32[4] = aten.a(%0) {stage=0}
  _ = aten.mul_(%1, %2) writes(0: %1 -> %3: f32[4]) {stage=0}
  _ = aten.mul_(%3, %2) writes(0: %3 -> %4: f32[4]) {stage=1}
  output result(0) %4
  output update(0) %4
}
)",
                                     {.schedule = schedule::ScheduleKind::kSharded, .device_iterations = 2});
  EXPECT_EQ(section(text, "  worker 0 device=0"), "fwd/0 micro_batch=0\nfwd/0 micro_batch=1 wait(fwd/1>=1)\n");
}

const char* kTraining = R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  external 0 parameter "w": f32[4] {trainable}
  external 1 accumulator "grad/w": f32[4] {owner=0}
  external 2 parameter "unused": f32[4]
  input %0 "x": f32[4] = argument(0)
  input %1 "w": f32[4] = parameter(0)
  input %2 "grad/w": f32[4] = accumulator(1)
  input %3 "unused": f32[4] = parameter(2)
  %4: f32[4] = aten.a(%0, %1) {stage=0}
  %5: f32[] = aten.loss(%4, %1) {stage=1}
  %6: f32[4] = aten.g(%5) {dir=bwd, stage=1}
  %7: f32[4] = aten.h(%6, %4) {dir=bwd, stage=0}
  _ = abele.accumulate(%2, %7) writes(0: %2 -> %8: f32[4]) {dir=bwd, stage=0}
  _ = abele.sgd_(%1, %8, none, 0) writes(0: %1 -> %9: f32[4]) {dir=update, stage=0}
  output loss %5
  output result(0) %5
  output update(0) %9
  output update(1) %8
}
)";

TEST(Build, UpdatesFollowAllBackwardsAndPrecedeTheNextGroup) {
  const std::string text =
      buildText(kTraining, {.schedule = schedule::ScheduleKind::k1F1B, .device_iterations = 2, .accumulation = 1});
  EXPECT_EQ(section(text, "  worker 0 device=0"),
            "fwd/0 micro_batch=0\n"
            "bwd/0 micro_batch=0 wait(bwd/1>=1)\n"
            "update/0 micro_batch=0\n"
            "fwd/0 micro_batch=1\n"
            "bwd/0 micro_batch=1 wait(bwd/1>=2)\n"
            "update/0 micro_batch=1\n");
  // Stage 1 reads the tied weight too. It waits for stage 0's next forward, which follows the update.
  EXPECT_EQ(section(text, "  worker 1 device=1"),
            "fwd/1 micro_batch=0 wait(fwd/0>=1)\n"
            "bwd/1 micro_batch=0\n"
            "fwd/1 micro_batch=1 wait(fwd/0>=2)\n"
            "bwd/1 micro_batch=1\n");
}

TEST(Build, UpdatesWaitForStagesThatTheyShareNothingWith) {
  const std::string text = buildText(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  external 0 accumulator "grad/w": f32[4]
  input %0 "x": f32[4] = argument(0)
  input %1 "grad/w": f32[4] = accumulator(0)
  %2: f32[] = aten.loss(%0) {stage=1}
  %3: f32[4] = aten.g(%2) {dir=bwd, stage=1}
  _ = abele.accumulate(%1, %3) writes(0: %1 -> %4: f32[4]) {dir=bwd, stage=1}
  %5: f32[4] = aten.norm(%4) {dir=update, stage=1}
  output loss %2
  output update(0) %4
}
)",
                                     {.schedule = schedule::ScheduleKind::k1F1B, .accumulation = 3});
  EXPECT_NE(text.find("update/1 micro_batch=2 wait(bwd/0>=3)\n"), std::string::npos) << text;
}

TEST(Build, GivesUnusedExternalsNoSlot) {
  const ir::Graph graph = ir::parse(kTraining);
  const Executable executable = build(graph, plan::makePlan(graph, {}));
  ASSERT_EQ(executable.externals.size(), 3u);
  EXPECT_GE(executable.externals[0].slot, 0);
  EXPECT_EQ(executable.externals[0].kind, ExternalKind::kParameter);
  EXPECT_EQ(executable.externals[1].owner, 0);
  EXPECT_EQ(executable.externals[2].slot, -1);
  EXPECT_EQ(peakBytes(executable, 0), 64 + 64 + 64);  // w, its gradient made in the accumulator, stash of %4
}

}  // namespace
}  // namespace abele::exe
