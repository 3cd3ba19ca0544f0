#include "passes/bisect.h"

#include "base/error.h"

namespace abele::passes {

Bisection bisectPipeline(ir::Graph graph, PassContext& context, const PipelineOptions& options,
                         const std::function<bool(const ir::Graph&)>& works) {
  const std::vector<PipelineStep> steps = pipelineSteps(graph, context, options);
  ir::requireValid(graph, ir::Form::kCaptured, /*from_user=*/true);
  Bisection result{.num_steps = steps.size()};
  if (!works(graph)) {
    result.end = Bisection::End::kBrokenBefore;
    return result;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    result.before = graph;
    bool is_broken = false;
    try {
      runPipeline(graph, context, {.passes = {steps[i].pass->name}});
      is_broken = graph != result.before && !works(graph);
    } catch (const Error& error) {
      is_broken = true;
      result.error = error.what();
    }
    if (!is_broken) continue;
    result.end = Bisection::End::kBroken;
    result.step = steps[i];
    result.position = i;
    return result;
  }
  return result;
}

}  // namespace abele::passes
