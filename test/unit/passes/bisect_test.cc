// Which pass is blamed, and why.
#include "passes/bisect.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"

namespace abele::passes {
namespace {

using End = Bisection::End;

// normalise-views drops %3, dce drops %2.
ir::Graph graph() {
  return ir::parse(
      "graph @g {\n"
      "  block 0 \"\"\n"
      "  block 1 \"b\" {ipu=0}\n"
      "  input %0: f32[4] = argument(0)\n"
      "  input %1: f32[4] = argument(1)\n"
      "  %2: f32[4] = aten.neg(%0)\n"
      "  %3: f32[4] view(%1+0) = aten.view(%1, [4])\n"
      "  %4: f32[4] = aten.exp(%3) {block=1}\n"
      "  output result(0) %4\n"
      "}\n");
}

Bisection bisect(const PipelineOptions& options, const std::function<bool(const ir::Graph&)>& works) {
  PassContext context;
  return bisectPipeline(graph(), context, options, works);
}

bool has(const ir::Graph& graph, const char* op) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const ir::Node& n) { return n.op == op; });
}

TEST(Bisect, NamesTheFirstPassThatBreaks) {
  const Bisection found = bisect({}, [](const ir::Graph& g) { return has(g, "aten::neg"); });
  ASSERT_EQ(found.end, End::kBroken);
  EXPECT_STREQ(found.step.pass->name, "dce");
  EXPECT_EQ(found.step.occurrence, 1);
  EXPECT_EQ(found.position, 1U);
  EXPECT_EQ(found.num_steps, 4U);
  EXPECT_TRUE(has(found.before, "aten::neg"));
  EXPECT_FALSE(has(found.before, "aten::view"));  // after normalise-views
  EXPECT_EQ(found.error, "");
}

TEST(Bisect, CountsOccurrencesAndLeavesOutDisabledOnes) {
  const Bisection found = bisect({.passes = {"dce", "normalise-views", "dce"}, .disabled = {"dce:1"}},
                                 [](const ir::Graph& g) { return has(g, "aten::neg"); });
  ASSERT_EQ(found.end, End::kBroken);
  EXPECT_STREQ(found.step.pass->name, "dce");
  EXPECT_EQ(found.step.occurrence, 2);
  EXPECT_EQ(found.position, 1U);
  EXPECT_EQ(found.num_steps, 2U);
}

TEST(Bisect, AGraphThatIsMendedLaterIsStillBrokenFirst) {
  int asked = 0;
  const Bisection found = bisect({}, [&](const ir::Graph&) { return ++asked != 2; });
  ASSERT_EQ(found.end, End::kBroken);
  EXPECT_EQ(found.position, 0U);
}

TEST(Bisect, AsksOnlyAboutGraphsThatChanged) {
  int asked = 0;
  const Bisection found = bisect({.passes = {"dce", "dce", "drop-unused-saved", "dce"}}, [&](const ir::Graph&) {
    ++asked;
    return true;
  });
  EXPECT_EQ(found.end, End::kNeverBroken);
  EXPECT_EQ(asked, 2);
}

TEST(Bisect, APassThatThrowsIsBlamed) {
  PassContext context;
  context.stages.stages = {{.blocks = {"absent"}}};
  const Bisection found = bisectPipeline(graph(), context, {}, [](const ir::Graph&) { return true; });
  ASSERT_EQ(found.end, End::kBroken);
  EXPECT_STREQ(found.step.pass->name, "assign-stages");
  EXPECT_NE(found.error.find("E0305"), std::string::npos) << found.error;
}

TEST(Bisect, AGraphThatFailsAsItIsBlamesNobody) {
  EXPECT_EQ(bisect({}, [](const ir::Graph&) { return false; }).end, End::kBrokenBefore);
}

TEST(Bisect, UnknownPassesAreRefused) {
  EXPECT_THROW(bisect({.passes = {"dec"}}, [](const ir::Graph&) { return true; }), UserError);
}

}  // namespace
}  // namespace abele::passes
