// The list of passes, the default order, and the loop that runs and checks them.
#include <algorithm>
#include <charconv>
#include <map>

#include "base/cat.h"
#include "base/error.h"
#include "base/log.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "passes/stage_rules.h"

namespace abele::passes {
namespace {

const PassRow& findPass(const std::string& name) {
  const auto& rows = allPasses();
  auto row = std::find_if(rows.begin(), rows.end(), [&](const PassRow& r) { return name == r.name; });
  if (row != rows.end()) return *row;
  std::string known;
  for (const PassRow& r : rows) known += cat(known.empty() ? "" : ", ", r.name);
  throwUser(ErrorCode::E0301, {.what = cat("there is no pass ", name), .expected = cat("one of ", known)});
}

// "dce" disables every occurrence, "dce:2" only the second.
bool isDisabled(const std::vector<std::string>& disabled, const std::string& name, int occurrence) {
  std::string numbered = cat(name, ":", occurrence);
  return std::any_of(disabled.begin(), disabled.end(),
                     [&](const std::string& d) { return d == name || d == numbered; });
}

void checkDisabled(const std::vector<std::string>& disabled) {
  for (const std::string& text : disabled) {
    size_t colon = text.find(':');
    findPass(text.substr(0, colon));
    if (colon == std::string::npos) continue;
    int number = 0;
    auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), number);
    ABELE_REQUIRE(
        error == std::errc() && end == text.data() + text.size() && number >= 1, E0301,
        {.what = cat("cannot disable ", text), .expected = "a pass, or a pass and an occurrence, for example dce:2"});
  }
}

// The texts are compared because a NaN among the numbers of a graph differs from itself.
bool isAsSaid(bool changed, const ir::Graph& graph, const ir::Graph& before) {
  return (graph != before) == changed || (!changed && ir::print(graph) == ir::print(before));
}

}  // namespace

const std::vector<PassRow>& allPasses() {
  static const std::vector<PassRow> rows = {
#define ABELE_PASS(function, name, needs, gives, summary) {name, function, ir::Form::needs, ir::Form::gives, summary},
#include "passes/passes.def"
#undef ABELE_PASS
  };
  return rows;
}

std::vector<std::string> defaultPipeline(const PipelineFacts& facts) {
  std::vector<std::string> p;
  // First: later passes find equal values by their ids.
  p.push_back("normalise-views");
  // Before dce, which removes values that only the dropped operands needed.
  if (facts.training) p.push_back("drop-unused-saved");
  // Before stages are assigned, so that no dead node makes a stage or breaks the order of stages.
  p.push_back("dce");
  p.push_back("assign-stages");
  // After assign-stages, because it keeps what other stages read; before shard, which divides copies, too.
  if (facts.training && facts.recomputes) p.push_back("recompute");
  // After assign-stages: it divides stages. Before the passes that add copies and updates to the stages that work is
  // in.
  if (facts.shards) p.push_back("shard");
  // After assign-stages, which tells the stages of readers; before lower-optimizer, whose writes the schedule orders.
  p.push_back("snapshot-written");
  // After assign-stages: an update runs on the stage of its gradient.
  if (facts.training) p.push_back("lower-optimizer");
  // After recompute, which does not repeat nodes that write.
  if (facts.fuses_loss) p.push_back("fuse-loss");
  // After recompute, so that recomputed functions are fast too.
  if (facts.approximates) p.push_back("fast-functions");
  // Late: it looks at the readers of each backward node, and updates and recomputed nodes are among them.
  if (facts.training && facts.splits_weight_gradients) p.push_back("split-weight-gradient");
  // After split-weight-gradient, which moves a gradient and its sum to one task, and needs to see them as two nodes.
  if (facts.training && facts.fuses_accumulation) p.push_back("fuse-accumulation");
  // After fuse-accumulation, which joins ATen's products with their sums.
  if (facts.approximates) p.push_back("fast-products");
  // Last of all: it looks for the task that reads a value first, and the passes before it move nodes to other tasks.
  if (facts.has_several_spaces) p.push_back("insert-transfers");
  return p;
}

std::vector<PipelineStep> pipelineSteps(const ir::Graph& graph, const PassContext& context,
                                        const PipelineOptions& options) {
  std::vector<std::string> names = options.passes;
  if (names.empty())
    names = defaultPipeline({.training = graph.training,
                             .shards = dividesStages(graph, context.stages),
                             .recomputes = context.recompute.enabled,
                             .has_several_spaces = !context.stages.spaces.empty()});
  checkDisabled(options.disabled);
  std::map<std::string, int> occurrences;
  std::vector<PipelineStep> steps;
  for (const std::string& name : names) {
    const PipelineStep step{.pass = &findPass(name), .occurrence = ++occurrences[name]};
    if (!isDisabled(options.disabled, name, step.occurrence)) steps.push_back(step);
  }
  return steps;
}

void runPipeline(ir::Graph& graph, PassContext& context, const PipelineOptions& options) {
  const std::vector<PipelineStep> steps = pipelineSteps(graph, context, options);
  // The form that the graph is known to have. The first check is of the caller's graph.
  ir::Form form = ir::Form::kCaptured;
  ir::requireValid(graph, form, /*from_user=*/true);
  ir::Graph before;
  if (options.checks_passes) before = graph;
  for (const PipelineStep& step : steps) {
    const PassRow& pass = *step.pass;
    if (pass.needs > form) ir::requireValid(graph, form = pass.needs, /*from_user=*/true);
    const bool changed = pass.run(graph, context) == Changed::kYes;
    const ir::Form gives = std::max(form, pass.gives);
    if (options.checks_passes) {
      ABELE_CHECK(isAsSaid(changed, graph, before), "pass ", pass.name,
                  changed ? " changed nothing and says it did" : " changed the graph and says it did not");
      if (changed || gives > form) ir::requireValid(graph, gives);
      if (changed) before = graph;
    }
    form = gives;
    log::debug("pass ", pass.name, changed ? " changed graph @" : " did not change graph @", graph.name);
    if (options.after_pass) options.after_pass(pass.name, graph);
  }
  if (!options.checks_passes) ir::requireValid(graph, form);
}

}  // namespace abele::passes
