// The rest of a graph after all parts without effect on the question are removed.
#include "passes/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "../../support/random_graph.h"
#include "ir/text.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

ir::Graph reduced(const char* text, const std::function<bool(const ir::Graph&)>& shows) {
  return reduceGraph(ir::parse(text), ir::Form::kCaptured, shows);
}

const ir::Node* find(const ir::Graph& graph, const std::string& op) {
  auto node = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const ir::Node& n) { return n.op == op; });
  return node == graph.nodes.end() ? nullptr : &*node;
}

constexpr const char* kChain =
    "graph @chain {\n"
    "  block 0 \"\"\n"
    "  block 1 \"a\" {src=\"m.py:1\"}\n"
    "  external 0 parameter \"w\": f32[4]\n"
    "  external 1 buffer \"b\": f32[4]\n"
    "  input %0 \"x\": f32[4] = argument(0)\n"
    "  input %1 \"w\": f32[4] = parameter(0)\n"
    "  input %2 \"b\": f32[4] = buffer(1)\n"
    "  %3: f32[4] = aten.mul.Tensor(%0, %1) {block=1, src=\"m.py:2\"}\n"
    "  %4: f32[2] view(%3+2) = aten.slice.Tensor(%3, 0, 2, 4, 1) {block=1}\n"
    "  %5: f32[2] = aten.exp(%4) {block=1, scope=\"e\"}\n"
    "  _ = aten.add_.Scalar(%2, 1, 1) writes(0: %2 -> %6: f32[4]) {block=1}\n"
    "  %7: f32[2] = aten.neg(%5) {block=1}\n"
    "  output result(0) %7\n"
    "  output update(1) %6\n"
    "}\n";

TEST(Reduce, OneOperatorIsLeftWithNewArguments) {
  const ir::Graph graph = reduced(kChain, [](const ir::Graph& g) { return find(g, "aten::neg") != nullptr; });
  EXPECT_EQ(ir::print(graph),
            "graph @chain {\n"
            "  input %0: f32[2] = argument(0)\n"
            "  _ = aten.neg(%0)\n"
            "}\n");
}

TEST(Reduce, EarlierValuesOfTheTypeStandIn) {
  const ir::Graph graph = reduced(kChain, [](const ir::Graph& g) {
    const ir::Node* exp = find(g, "aten::exp");
    return exp != nullptr && find(g, "aten::neg") != nullptr && !g.outputs.empty();
  });
  // The chain between the two operators and the output is gone.
  EXPECT_EQ(graph.nodes.size(), 2U) << ir::print(graph);
  EXPECT_EQ(graph.inputs.size(), 1U) << ir::print(graph);
  EXPECT_EQ(graph.outputs.size(), 1U);
  EXPECT_TRUE(graph.externals.empty());
  EXPECT_TRUE(graph.blocks.empty());
}

TEST(Reduce, AWriteIsLeftOutByReadingWhatWasBefore) {
  const ir::Graph graph = reduced(kChain, [](const ir::Graph& g) {
    return std::any_of(g.outputs.begin(), g.outputs.end(),
                       [](const ir::Output& o) { return o.kind == ir::OutputKind::kUpdate; });
  });
  EXPECT_TRUE(graph.nodes.empty()) << ir::print(graph);
  EXPECT_EQ(graph.externals.size(), 1U);
}

TEST(Reduce, AWriteAndAViewKeepTheirMemory) {
  const ir::Graph graph = reduced(kChain, [](const ir::Graph& g) {
    const ir::Node* slice = find(g, "aten::slice.Tensor");
    return slice != nullptr && slice->is_view && find(g, "aten::add_.Scalar") != nullptr &&
           find(g, "aten::add_.Scalar")->writes.size() == 1;
  });
  EXPECT_EQ(graph.nodes.size(), 2U) << ir::print(graph);
  EXPECT_TRUE(ir::verify(graph, ir::Form::kCaptured).empty());
}

// Questions about a graph: two operators, or an operator and the source of its operand.
TEST(Reduce, WhatIsLeftIsValidReadableAndSmallest) {
  int shrunk = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const ir::Graph graph = test::RandomGraph(seed).make();
    std::mt19937 random(seed);
    const std::string first = graph.nodes[random() % graph.nodes.size()].op;
    const std::string second = graph.nodes[random() % graph.nodes.size()].op;
    std::set<std::string> asked;
    const auto shows = [&](const ir::Graph& g) {
      EXPECT_TRUE(ir::verify(g, ir::Form::kCaptured).empty());
      EXPECT_TRUE(asked.insert(ir::print(g)).second) << "asked twice";
      return find(g, first) != nullptr && find(g, second) != nullptr;
    };
    const ir::Graph left = reduceGraph(graph, ir::Form::kCaptured, shows);
    ASSERT_EQ(ir::parse(ir::print(left)), left) << "seed " << seed;
    ASSERT_NE(find(left, first), nullptr);
    ASSERT_LE(left.nodes.size(), first == second ? 1U : 2U) << "seed " << seed << "\n" << ir::print(left);
    ASSERT_TRUE(left.outputs.empty());
    shrunk += left.nodes.size() < graph.nodes.size();
  }
  EXPECT_GT(shrunk, 30);
}

TEST(Reduce, KeepsTheForm) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    ir::Graph graph = test::RandomGraph(seed).make();
    PassContext context;
    runPipeline(graph, context);
    const size_t externals = graph.externals.size();
    const auto shows = [](const ir::Graph& g) {
      return std::any_of(g.nodes.begin(), g.nodes.end(),
                         [](const ir::Node& n) { return n.direction == ir::Direction::kBackward; });
    };
    if (!shows(graph)) continue;
    const ir::Graph left = reduceGraph(graph, ir::Form::kLowered, shows);
    ASSERT_TRUE(ir::verify(left, ir::Form::kLowered).empty()) << "seed " << seed;
    ASSERT_EQ(left.nodes.size(), 1U) << ir::print(left);
    ASSERT_EQ(left.stages.size(), 1U) << ir::print(left);
    ASSERT_LE(left.externals.size(), externals);
  }
}

TEST(Reduce, SameGraphTwice) {
  const auto shows = [](const ir::Graph& g) { return g.nodes.size() >= 3; };
  const ir::Graph graph = test::RandomGraph(7).make();
  EXPECT_EQ(ir::print(reduceGraph(graph, ir::Form::kCaptured, shows)),
            ir::print(reduceGraph(graph, ir::Form::kCaptured, shows)));
}

}  // namespace
}  // namespace abele::passes
