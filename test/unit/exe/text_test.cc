// The text of an executable reads back as the executable, and no text does harm.
#include <gtest/gtest.h>

#include <random>

#include "../../support/random_graph.h"
#include "../../support/random_text.h"
#include "base/error.h"
#include "exe/build/build.h"
#include "passes/pass.h"

namespace abele::exe {
namespace {

using schedule::ScheduleKind;

Executable randomExecutable(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  constexpr ScheduleKind kKinds[] = {ScheduleKind::kSharded, ScheduleKind::k1F1B, ScheduleKind::kZeroBubble};
  ir::Graph graph = test::RandomGraph(seed).make();
  passes::PassContext context;
  context.optimizer.kind = passes::OptimizerRules::Kind::kAdam;
  context.optimizer.groups = {{}};
  for (const ir::External& external : graph.externals)
    if (external.trainable) context.optimizer.group_of[external.name] = 0;
  plan::PlanOptions options{
      .schedule = kKinds[below(3)], .device_iterations = 1 + below(2), .accumulation = 4 + below(3)};
  passes::runPipeline(graph, context,
                      {.passes = passes::defaultPipeline(
                           {.training = true, .splits_weight_gradients = splitsBackward(options.schedule)})});
  if (below(2) == 0)
    for (size_t s = 0; s < graph.stages.size(); ++s) graph.stages[s].device = static_cast<int32_t>(s % 2);
  options.locations.weights.off_chip = below(3) == 0;
  options.locations.activations.off_chip = below(3) == 0;
  options.locations.fetch_ahead = below(2) == 0;
  Replication replication{.replicas = 1 + below(3), .processes = 1 + below(2)};
  for (int32_t r = 0; r < replication.replicas; ++r) replication.input_part.push_back(r);
  return build(graph, plan::makePlan(graph, options), replication);
}

TEST(ExecutableText, ReadsBackAsTheSameExecutable) {
  int off_chip = 0, replicated = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    const Executable executable = randomExecutable(seed);
    const std::string text = print(executable);
    const Executable read = parse(text);
    ASSERT_TRUE(read == executable) << "seed " << seed << "\n" << text << "\n" << print(read);
    ASSERT_EQ(print(read), text);
    off_chip += offChipBytes(executable) > 0;
    replicated += executable.replicas > 1;
  }
  EXPECT_GT(off_chip, 15);
  EXPECT_GT(replicated, 20);
}

TEST(ExecutableText, DamagedTextsAreReadOrRefused) {
  int num_read = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const std::string text = test::damaged(print(randomExecutable(seed % 20)), random);
    try {
      const Executable read = parse(text);
      ++num_read;
      ASSERT_TRUE(parse(print(read)) == read) << text;
    } catch (const UserError& error) {
      ASSERT_EQ(error.code(), ErrorCode::E0501) << error.what();
    }
  }
  EXPECT_GT(num_read, 100);
}

// Names with punctuation, a name that occurs twice, and names that are words of the text.
TEST(ExecutableText, AnyNameReadsBack) {
  Executable e = randomExecutable(1);
  ASSERT_GE(e.segments.size(), 3U);
  e.segments[0].name = e.segments[1].name = "worker";
  e.segments[2].name = "two words # \"quoted\"";
  e.groups[0].name = "a[0]";
  e.groups[1].name = "";
  e.slots[0].name = "group";
  e.sources.push_back("no\nline");
  e.sources.push_back("net.py:1");
  if (!e.externals.empty()) e.externals[0].name = "layers.0/w = x";
  for (Segment& segment : e.segments)
    for (Instruction& i : segment.instructions) i.source = static_cast<int32_t>(e.sources.size()) - 1;
  ASSERT_EQ(verify(e), std::vector<std::string>{});
  EXPECT_TRUE(parse(print(e)) == e) << print(e);
}

std::string found(const std::string& text) {
  try {
    parse(text);
  } catch (const UserError& error) {
    return error.message().found;
  }
  return "nothing";
}

TEST(ExecutableText, TellsAllMistakesWithTheirLines) {
  EXPECT_EQ(found(""), "line 1: expected 'executable'");
  EXPECT_EQ(found("executable training device_iterations=1 micro_batch=1"),
            "line 1: unknown attribute at 'micro_batch=1'");
  EXPECT_EQ(found("executable inference device_iterations=1\n"
                  "  group 0 input/0 inputs worker=-1 frames=1 bytes=0\n"
                  "  $1 x f32[4] group=0 at=0\n"
                  "  inputs [$7] outputs []\n"
                  "  segment 0 fwd/x\n"
                  "    none = aten::relu_($0) source=3\n"
                  "  worker 0 device=0\n"
                  "    bwd/0 micro_batch=0\n"),
            "line 2: unknown kind of group 'inputs'\n"
            "line 3: expected slot $0, found $1\n"
            "line 4: there is no slot $7\n"
            "line 5: expected a number at 'x'\n"
            "line 6: there is no source 3\n"
            "line 8: there is no segment bwd/0");
}

TEST(ExecutableText, WhatCannotRunIsRefused) {
  Executable e = randomExecutable(2);
  std::swap(e.workers[0].actions.front(), e.workers[0].actions.back());
  ASSERT_FALSE(verify(e).empty());
  EXPECT_NE(found(print(e)), "nothing");
}

}  // namespace
}  // namespace abele::exe
