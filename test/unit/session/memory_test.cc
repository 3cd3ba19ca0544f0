// Memory limits: the recomputation that fits, against all there are; the error; the option.
#include <gtest/gtest.h>

#include "../runtime/random_staged_graph.h"
#include "base/error.h"
#include "compile/lowering.h"
#include "networks.h"
#include "passes/recompute.h"
#include "plan/cost.h"
#include "plan/operator_cost.h"

namespace abele::test {
namespace {

constexpr size_t kMostCandidates = 8;

compile::ProgramOptions trainingOptions(schedule::ScheduleKind schedule) {
  compile::ProgramOptions options;
  options.training = true;
  options.gradient_accumulation = 4;
  options.schedule = schedule;
  return options;
}

struct Outcome {
  std::vector<int64_t> peaks;  // by device number
  int64_t extra_ns = 0;
};

int64_t timeOf(const ir::Graph& graph) {
  int64_t time_ns = 0;
  for (const ir::Node& node : graph.nodes)
    if (!node.is_view && node.direction != ir::Direction::kUpdate) time_ns += plan::estimateNodeNs(graph, node);
  return time_ns;
}

Outcome recomputed(const ir::Graph& lowered, const compile::ProgramOptions& options,
                   const std::vector<ir::ValueId>& kept) {
  ir::Graph graph = lowered;
  passes::PassContext context;
  context.recompute = {.enabled = true, .last_stage = true, .kept = kept};
  passes::recompute(graph, context);
  const plan::Plan plan = plan::makePlan(graph, compile::planOptions(options));
  return {plan::peakDeviceBytes(plan), timeOf(graph) - timeOf(lowered)};
}

std::vector<ir::ValueId> candidatesOf(const ir::Graph& graph, const plan::Plan& plan) {
  const std::vector<bool> repeatable = passes::repeatableValues(graph, {.enabled = true, .last_stage = true});
  std::vector<bool> is_read_later(graph.values.size(), false);
  for (const ir::Node& node : graph.nodes)
    if (!node.is_view && node.direction != ir::Direction::kForward)
      ir::forEachOperand(node, [&](ir::ValueId v) { is_read_later[static_cast<size_t>(graph.baseOf(v))] = true; });
  std::vector<ir::ValueId> found;
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (repeatable[v] && is_read_later[v] && plan.placement[v].home == plan::Home::kStash)
      found.push_back(static_cast<ir::ValueId>(v));
  return found;
}

// On one device, so that the best choice is the best of the whole.
ir::Graph oneDevice(uint64_t seed) {
  ir::Graph graph = RandomStagedGraph(seed, /*training=*/true).make();
  for (ir::Stage& stage : graph.stages) stage.device = 0;
  return graph;
}

TEST(RecomputeToFit, FindsWhatBruteForceFinds) {
  int compared = 0, exact = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const ir::Graph graph = oneDevice(seed);
    compile::ProgramOptions options = trainingOptions(schedule::ScheduleKind::kGPipe);
    const plan::Plan plan = plan::makePlan(graph, compile::planOptions(options));
    const std::vector<ir::ValueId> all = candidatesOf(graph, plan);
    if (all.empty() || all.size() > kMostCandidates) continue;
    const int64_t kept_bytes = plan::peakDeviceBytes(plan)[0];
    std::vector<Outcome> outcomes;
    int64_t least = kept_bytes;
    for (uint32_t set = 0; set < (1U << all.size()); ++set) {
      std::vector<ir::ValueId> kept;
      for (size_t i = 0; i < all.size(); ++i)
        if ((set >> i & 1U) == 0) kept.push_back(all[i]);
      outcomes.push_back(recomputed(graph, options, kept));
      least = std::min(least, outcomes.back().peaks[0]);
    }
    for (const int64_t limit : {least, (least + kept_bytes) / 2, kept_bytes - 1, kept_bytes, least - 1}) {
      options.device_memory.every = limit;
      const compile::Recomputed found = compile::recomputeToFit(graph, {.graph = graph}, options, {});
      EXPECT_EQ(found.needed, limit < kept_bytes);
      if (!found.needed) continue;
      const Outcome outcome = recomputed(graph, options, found.kept);
      EXPECT_EQ(outcome.peaks[0] <= limit, least <= limit) << "seed " << seed << " limit " << limit;
      if (least > limit) continue;
      int64_t best_ns = std::numeric_limits<int64_t>::max();
      for (const Outcome& o : outcomes)
        if (o.peaks[0] <= limit) best_ns = std::min(best_ns, o.extra_ns);
      ++compared;
      exact += outcome.extra_ns == best_ns;
      EXPECT_LE(outcome.extra_ns, 4 * best_ns)  // of a few operators: one more is a lot
          << "seed " << seed << " limit " << limit;
    }
  }
  EXPECT_GE(compared, 50);
  EXPECT_GE(exact * 10, compared * 7);
}

TEST(RecomputeToFit, IsDeterministic) {
  const ir::Graph graph = oneDevice(5);
  compile::ProgramOptions options = trainingOptions(schedule::ScheduleKind::kGPipe);
  options.device_memory.every = plan::peakDeviceBytes(plan::makePlan(graph, compile::planOptions(options)))[0] - 64;
  EXPECT_EQ(compile::recomputeToFit(graph, {.graph = graph}, options, {}).kept,
            compile::recomputeToFit(graph, {.graph = graph}, options, {}).kept);
}

compile::ProgramOptions twoStages() {
  compile::ProgramOptions options;
  options.training = true;
  options.gradient_accumulation = 3;
  options.threads_per_device = 1;
  return options;
}

int64_t fullest(session::Session& session) {
  int64_t bytes = 0;
  for (const auto& stage : session.report().stages) bytes = std::max(bytes, stage.peak_bytes);
  return bytes;
}

TEST(DeviceMemory, RefusesAndLeavesTheSession) {
  const std::shared_ptr<Network> network = makeNetwork("mlp", 2);
  ModelView view(*network);
  const Tensors data = network->sample(12);
  const auto spec = specFor(*network, optim::AdamW{});
  session::Session free(twoStages());
  free.compile(view.program, data, spec);
  const int64_t needed = fullest(free);

  compile::ProgramOptions options = twoStages();
  options.device_memory.every = needed - 1;
  session::Session refused(options);
  try {
    refused.compile(view.program, data, spec);
    FAIL() << "compiled with " << needed - 1 << " bytes";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0405);
    EXPECT_NE(error.message().what.find(cat("needs ", needed, " bytes, ", needed - 1)), std::string::npos);
    EXPECT_NE(error.message().found.find("largest tensors"), std::string::npos);
    EXPECT_NE(error.message().remedy.find(": fits, "), std::string::npos) << error.what();
  }
  EXPECT_FALSE(refused.isCompiled());
  EXPECT_THROW(refused.load(free.program(), view.program.model), UserError);
  options.device_memory.every = needed;
  session::Session exact(options);
  exact.compile(view.program, data, spec);
  EXPECT_EQ(fullest(exact), needed);
  for (const auto& stage : exact.report().stages) EXPECT_EQ(stage.mapped_bytes, stage.peak_bytes);
}

}  // namespace
}  // namespace abele::test
