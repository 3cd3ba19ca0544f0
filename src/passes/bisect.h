// Finds the pass of a pipeline that breaks a property of the graph. Used by tools/abele-opt.
#pragma once

#include <functional>
#include <string>

#include "passes/pass.h"

namespace abele::passes {

struct Bisection {
  enum class End {
    kBrokenBefore,  // the given graph fails already
    kBroken,        // `step` broke it
    kNeverBroken,   // the graph works after every pass
  };
  End end = End::kNeverBroken;
  PipelineStep step;
  size_t position = 0;  // position of the step among those that ran, from 0
  size_t num_steps = 0;
  ir::Graph before;   // the input of the step; `works` is true of it
  std::string error;  // text of an exception of the pass; empty: `works` refused its result
};

/// Finds the first pass that throws, or after which `works` returns false. `works` is called for the given graph, then
/// in order after each pass that changed it. It tries all passes in order, because pipelines are short and a later pass
/// may repair the graph, which would mislead a binary search. Throws E0301, and E0203 for the given graph.
Bisection bisectPipeline(ir::Graph graph, PassContext& context, const PipelineOptions& options,
                         const std::function<bool(const ir::Graph&)>& works);

}  // namespace abele::passes
