// Gradient sums over processes are added up while backward runs.
#include "exe/build/buckets.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/cat.h"
#include "exe/build/build.h"
#include "ir/text.h"

namespace abele::exe {
namespace {

// Two stages. The second one has two weights, and backward makes the gradient of its last weight first.
std::string graphOf(int64_t elements) {
  const std::string type = cat("f32[", elements, "]");
  std::string text = R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  external 0 parameter "u": T {trainable}
  external 1 parameter "v": T {trainable}
  external 2 parameter "w": T {trainable}
  external 3 accumulator "grad/u": T {owner=0}
  external 4 accumulator "grad/v": T {owner=1}
  external 5 accumulator "grad/w": T {owner=2}
  input %0 "x": T = argument(0)
  input %1 "u": T = parameter(0)
  input %2 "v": T = parameter(1)
  input %3 "w": T = parameter(2)
  input %4 "grad/u": T = accumulator(3)
  input %5 "grad/v": T = accumulator(4)
  input %6 "grad/w": T = accumulator(5)
  %7: T = aten.a(%0, %1) {stage=0}
  %8: T = aten.a(%7, %2) {stage=1}
  %9: f32[] = aten.loss(%8, %3) {stage=1}
  %10: T = aten.g(%9, %8) {dir=bwd, stage=1}
  _ = abele.accumulate(%6, %10) writes(0: %6 -> %11: T) {dir=bwd, stage=1}
  %12: T = aten.g(%9, %7) {dir=bwd, stage=1}
  _ = abele.accumulate(%5, %12) writes(0: %5 -> %13: T) {dir=bwd, stage=1}
  %14: T = aten.h(%12, %0) {dir=bwd, stage=0}
  _ = abele.accumulate(%4, %14) writes(0: %4 -> %15: T) {dir=bwd, stage=0}
  _ = abele.sgd_(%1, %15, none, 0) writes(0: %1 -> %16: T) {dir=update, stage=0}
  _ = abele.sgd_(%2, %13, none, 0) writes(0: %2 -> %17: T) {dir=update, stage=1}
  _ = abele.sgd_(%3, %11, none, 0) writes(0: %3 -> %18: T) {dir=update, stage=1}
  output loss %9
  output result(0) %9
  output update(0) %16
  output update(1) %17
  output update(2) %18
  output update(3) %15
  output update(4) %13
  output update(5) %11
}
)";
  for (size_t at = text.find(" T"); at != std::string::npos; at = text.find(" T", at)) text.replace(at + 1, 1, type);
  return text;
}

Executable buildOf(int64_t elements, const Replication& replication, int64_t micro_batches = 2) {
  const ir::Graph graph = ir::parse(graphOf(elements));
  const plan::PlanOptions options{.schedule = schedule::ScheduleKind::k1F1B, .accumulation = micro_batches};
  Executable executable = build(graph, plan::makePlan(graph, options), replication);
  EXPECT_EQ(verify(executable), std::vector<std::string>{});
  EXPECT_EQ(parse(print(executable)), executable);
  return executable;
}

// The actions of the workers, one per line; those of the sums come last.
std::string actionsOf(const Executable& executable) {
  std::istringstream lines(print(executable));
  std::string out;
  bool in_worker = false;
  for (std::string line; std::getline(lines, line);) {
    in_worker |= line.starts_with("  worker");
    if (in_worker) out += line.substr(2) + "\n";
  }
  return out;
}

constexpr int64_t kMebi = int64_t{1} << 20;

TEST(Buckets, SumsOfAStageAreAddedUpWhileEarlierStagesGoOn) {
  EXPECT_EQ(actionsOf(buildOf(kMebi / 8, {.processes = 2, .input_part = {0}})),
            "worker 0 device=0\n"
            "  fwd/0 micro_batch=0\n"
            "  fwd/0 micro_batch=1\n"
            "  bwd/0 micro_batch=0 wait(bwd/1>=1)\n"
            "  bwd/0 micro_batch=1 wait(bwd/1>=2)\n"
            "  update/0 micro_batch=1 wait(reduce/processes/bucket1>=1)\n"
            "worker 1 device=1\n"
            "  fwd/1 micro_batch=0 wait(fwd/0>=1)\n"
            "  bwd/1 micro_batch=0\n"
            "  fwd/1 micro_batch=1 wait(fwd/0>=2)\n"
            "  bwd/1 micro_batch=1\n"
            "  update/1 micro_batch=1 wait(reduce/processes/bucket1>=1)\n"
            "worker 2 device=0 from=0 to=0\n"
            "  reduce/processes/bucket0 micro_batch=1 wait(bwd/1>=2)\n"
            "  reduce/processes/bucket1 micro_batch=1 wait(bwd/0>=2)\n");
}

TEST(Buckets, ALargeStageIsCutWhereSumsAreComplete) {
  const Executable executable = buildOf(kMebi, {.processes = 2, .input_part = {0}});
  const std::string actions = actionsOf(executable);
  EXPECT_NE(actions.find("  bwd/1/part0 micro_batch=1\n  bwd/1 micro_batch=1\n"), std::string::npos) << actions;
  EXPECT_NE(actions.find("  reduce/processes/bucket0 micro_batch=1 wait(bwd/1/part0>=2)\n"
                         "  reduce/processes/bucket1 micro_batch=1 wait(bwd/1>=2)\n"
                         "  reduce/processes/bucket2 micro_batch=1 wait(bwd/0>=2)\n"),
            std::string::npos)
      << actions;
}

TEST(Buckets, SmallSumsGoTogether) {
  const std::string actions = actionsOf(buildOf(4, {.processes = 2, .input_part = {0}}));
  EXPECT_NE(actions.find("worker 2 device=0 from=0 to=0\n"
                         "  reduce/processes/bucket0 micro_batch=1 wait(bwd/0>=2)\n"),
            std::string::npos)
      << actions;
}

TEST(Buckets, SumsWaitForAllReplicasOfTheProcess) {
  const std::string actions = actionsOf(buildOf(kMebi / 8, {.replicas = 2, .processes = 2, .input_part = {0, 1}}));
  EXPECT_NE(actions.find("  reduce/processes/bucket0 micro_batch=1 wait(bwd/1>=2) wait(bwd/1/replica1>=2)\n"),
            std::string::npos)
      << actions;
  EXPECT_NE(actions.find("  reduce/processes/bucket1 micro_batch=1 wait(bwd/0>=2) wait(bwd/0/replica1>=2)\n"),
            std::string::npos)
      << actions;
}

TEST(Buckets, AProgramOfOneProcessHasNone) {
  const std::string actions = actionsOf(buildOf(kMebi, {.replicas = 2, .input_part = {0, 1}}));
  EXPECT_EQ(actions.find("bucket"), std::string::npos) << actions;
  EXPECT_EQ(actions.find("part"), std::string::npos) << actions;
}

TEST(Buckets, OnlySumsRunOnALinkToItsOwnSpace) {
  Executable executable = buildOf(kMebi / 8, {.processes = 2, .input_part = {0}});
  std::swap(executable.workers[1].actions, executable.workers[2].actions);
  bool is_found = false;
  for (const std::string& finding : verify(executable)) is_found |= finding.ends_with("computes on a link");
  EXPECT_TRUE(is_found);
}

}  // namespace
}  // namespace abele::exe
