// What every graph must keep through every pipeline, on random graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "../../support/random_graph.h"
#include "base/cat.h"
#include "base/joined.h"
#include "ir/rewrite.h"
#include "ir/text.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

constexpr uint32_t kNumSeeds = 300;
constexpr PipelineFacts kAllFacts{.training = true,
                                  .shards = true,
                                  .recomputes = true,
                                  .splits_weight_gradients = true,
                                  .fuses_loss = true,
                                  .approximates = true,
                                  .fuses_accumulation = true,
                                  .has_several_spaces = true};

ir::Graph randomGraph(uint32_t seed) { return test::RandomGraph(seed).make(); }

PassContext contextFor(const ir::Graph& graph) {
  PassContext context;
  context.optimizer.kind = OptimizerRules::Kind::kAdam;
  context.optimizer.groups = {{}};
  for (const ir::External& external : graph.externals)
    if (external.trainable) context.optimizer.group_of[external.name] = 0;
  return context;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

// The places of a view's elements in its base. If the base is a copy of a range of an external: in the external.
std::vector<int64_t> placesOf(const ir::Graph& graph, const ir::Value& view) {
  std::vector<int64_t> places = {view.offset};
  for (size_t d = 0; d < view.type.sizes.size(); ++d) {
    const std::vector<int64_t> before = std::exchange(places, {});
    for (int64_t place : before)
      for (int64_t i = 0; i < view.type.sizes[d]; ++i) places.push_back(place + i * view.type.strides[d]);
  }
  for (const ir::Input& input : graph.inputs) {
    if (input.value != view.base || input.dim == ir::kNone) continue;
    const Type &part = graph.values[view.base].type, &whole = graph.externals[input.external].type;
    for (int64_t& place : places) {
      int64_t in_whole = input.begin * whole.strides[input.dim];
      for (size_t d = 0; d < part.sizes.size(); ++d)
        in_whole += place / part.strides[d] % part.sizes[d] * whole.strides[d];
      place = in_whole;
    }
  }
  return places;
}

// What each output is, written out as a formula of the inputs: equal formulas, equal numbers. Views count by their
// region, so that a view of all of its base is its base.
std::map<std::string, size_t> meaning(const ir::Graph& graph) {
  std::hash<std::string> hash;
  std::vector<size_t> of(graph.values.size());  // by base
  auto read = [&](ir::ValueId v) {
    const ir::Value& value = graph.values[v];
    return cat(of[value.base], "+", abele::joined(placesOf(graph, value)), ":",
               contiguousType(value.type.dtype, value.type.sizes).str());
  };
  for (const ir::Input& input : graph.inputs)
    of[input.value] = hash(cat("input", static_cast<int>(input.kind), ",", input.external));
  for (const ir::Node& node : graph.nodes) {
    if (node.op == "abele::transfer") {  // the same bits elsewhere
      ir::forEachResult(node,
                        [&](ir::ValueId v) { of[v] = of[graph.baseOf(static_cast<ir::ValueId>(node.args[1].i))]; });
      continue;
    }
    ir::Graph line;  // the arguments without their ids
    ir::Node& copy = line.addNode(node.op);
    copy.args = node.args;
    for (Arg& arg : copy.args) {
      if (arg.kind == Arg::Kind::kId) arg.i = 0;
      if (arg.holdsIds()) std::fill(arg.ints.begin(), arg.ints.end(), 0);
    }
    std::string formula = cat(ir::print(line), node.random_offset);
    ir::forEachOperand(node, [&](ir::ValueId v) { formula += read(v); });
    for (size_t i = 0; i < node.results.size(); ++i)
      for (size_t j = 0; j < node.results[i].size(); ++j)
        if (ir::ValueId v = node.results[i][j]; v >= 0 && graph.baseOf(v) == v)
          of[v] = hash(cat(formula, "#", i, ",", j));
    for (const ir::Write& w : node.writes) of[w.after] = hash(cat(formula, w.view.str(), w.offset));
  }
  std::map<std::string, size_t> outputs;
  for (const ir::Output& output : graph.outputs)
    outputs[cat(static_cast<int>(output.kind), ",", output.target)] = hash(read(output.value));
  return outputs;
}

TEST(Property, RandomGraphsAreValid) {
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed)
    ASSERT_EQ(joined(ir::verify(randomGraph(seed), ir::Form::kCaptured)), "") << "seed " << seed;
}

TEST(Property, TextRoundTrips) {
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed) {
    ir::Graph graph = randomGraph(seed);
    ASSERT_EQ(ir::parse(ir::print(graph)), graph) << "seed " << seed;
    PassContext context = contextFor(graph);
    runPipeline(graph, context);
    ASSERT_EQ(ir::parse(ir::print(graph)), graph) << "seed " << seed;
  }
}

TEST(Property, TheDefaultPipelineIsIdempotent) {
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed) {
    ir::Graph graph = randomGraph(seed);
    PassContext context = contextFor(graph);
    runPipeline(graph, context);
    ASSERT_EQ(joined(ir::verify(graph, ir::Form::kLowered)), "") << "seed " << seed;
    std::string text = ir::print(graph);
    // A gradient that no block names goes where its operands are made, and a copy is made elsewhere than the original.
    if (text.find("aten.clone") != std::string::npos) continue;
    runPipeline(graph, context);
    ASSERT_EQ(ir::print(graph), text) << "seed " << seed;
  }
}

TEST(Property, EachPassIsIdempotent) {
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed) {
    ir::Graph graph = randomGraph(seed);
    PassContext context = contextFor(graph);
    context.recompute = {.enabled = true, .last_stage = true};
    context.stages.spaces = {0};
    for (const std::string& name : defaultPipeline(kAllFacts)) {
      PipelineOptions options{.passes = {name}};
      runPipeline(graph, context, options);
      std::string text = ir::print(graph);
      runPipeline(graph, context, options);
      ASSERT_EQ(ir::print(graph), text) << name << ", seed " << seed;
    }
  }
}

TEST(Property, OutputsKeepTheirMeaning) {
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed) {
    ir::Graph graph = randomGraph(seed);
    auto expected = meaning(graph);
    PassContext context = contextFor(graph);
    // Any order of the passes that keep the form, repeated.
    std::vector<std::string> passes = {"normalise-views", "dce", "drop-unused-saved", "dce", "normalise-views"};
    std::mt19937 random(seed);
    std::shuffle(passes.begin(), passes.end(), random);
    passes.push_back("assign-stages");
    runPipeline(graph, context, {.passes = passes});
    ASSERT_EQ(meaning(graph), expected) << "seed " << seed;
  }
}

TEST(Property, TheDefaultPipelineHasEveryPassOnce) {
  std::vector<std::string> names, known;
  for (const PassRow& pass : allPasses()) known.push_back(pass.name);
  names = defaultPipeline(kAllFacts);
  std::sort(names.begin(), names.end());
  std::sort(known.begin(), known.end());
  EXPECT_EQ(names, known);
}

TEST(Property, EveryFactKeepsTheMeaningOfOutputs) {
  int copies = 0, transfers = 0;
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed) {
    ir::Graph plain = randomGraph(seed), graph = plain;
    PassContext context = contextFor(graph);
    runPipeline(plain, context);
    context.recompute = {.enabled = true, .last_stage = true};
    context.stages.spaces = {0};
    runPipeline(graph, context, {.passes = defaultPipeline(kAllFacts)});
    ASSERT_EQ(meaning(graph), meaning(plain)) << "seed " << seed;
    copies += graph.nodes.size() > plain.nodes.size();
    transfers += ir::print(graph).find("abele.transfer") != std::string::npos;
  }
  EXPECT_GT(copies, 100);
  EXPECT_GT(transfers, 100);
}

// Late are exactly the backward nodes from which no way leads to another stage or out of the micro-batch.
TEST(Property, OnlyUpdatesWaitForWeightGradients) {
  int late = 0, early = 0;
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed) {
    ir::Graph graph = randomGraph(seed);
    PassContext context = contextFor(graph);
    runPipeline(graph, context);
    const auto expected = meaning(graph);
    runPipeline(graph, context, {.passes = {"split-weight-gradient"}});
    ASSERT_EQ(meaning(graph), expected) << "seed " << seed;
    for (const ir::Node& node : graph.nodes) {
      if (node.is_view || node.direction == ir::Direction::kUpdate || node.direction == ir::Direction::kForward)
        continue;
      bool leaves = false;
      ir::forEachResult(node, [&](ir::ValueId from) {
        for (const ir::Output& output : graph.outputs)
          if (output.kind != ir::OutputKind::kUpdate || graph.externals[output.target].kind == ir::InputKind::kBuffer)
            leaves = leaves || ir::reaches(graph, from, output.value);
        for (const ir::Node& other : graph.nodes) {
          if (other.is_view || other.direction == ir::Direction::kUpdate || other.stage == node.stage) continue;
          ir::forEachOperand(other, [&](ir::ValueId to) { leaves = leaves || ir::reaches(graph, from, to); });
        }
      });
      ASSERT_EQ(node.direction == ir::Direction::kWeightGrad, !leaves) << "seed " << seed << " node " << node.id << "\n"
                                                                       << ir::print(graph);
      ++(leaves ? early : late);
    }
  }
  EXPECT_GT(late, 100);
  EXPECT_GT(early, 100);
}

// Forward goes up the stages, backward goes down.
TEST(Property, StagesFollowTheDataFlow) {
  for (uint32_t seed = 0; seed < kNumSeeds; ++seed) {
    ir::Graph graph = randomGraph(seed);
    PassContext context = contextFor(graph);
    runPipeline(graph, context);
    ir::Makers makers(graph);
    for (const ir::Node& node : graph.nodes) {
      if (node.is_view || node.direction == ir::Direction::kUpdate) continue;
      ir::forEachOperand(node, [&](ir::ValueId v) {
        const ir::Node* maker = makers.of(v);
        if (maker == nullptr) return;
        if (node.direction == ir::Direction::kForward) {
          ASSERT_LE(maker->stage, node.stage) << "seed " << seed << "\n" << ir::print(graph);
        } else if (maker->direction != ir::Direction::kForward) {
          ASSERT_GE(maker->stage, node.stage) << "seed " << seed << "\n" << ir::print(graph);
        }
      });
    }
  }
}

}  // namespace
}  // namespace abele::passes
