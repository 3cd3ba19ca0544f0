// Which pass of a pipeline breaks something that can be asked of a graph. Used by tools/abele-opt.
#pragma once

#include <functional>
#include <string>

#include "passes/pass.h"

namespace abele::passes {

struct Bisection {
  enum class End {
    kBrokenBefore,  // the given graph fails already
    kBroken,        // by `step`
    kNeverBroken,   // the graph works after every pass
  };
  End end = End::kNeverBroken;
  PipelineStep step;
  size_t position = 0;  // of the step among those that run, from 0
  size_t num_steps = 0;
  ir::Graph before;   // what the step was given: works
  std::string error;  // what the pass itself threw; empty: `works` said no to what it made
};

/// The first pass after which `works` says no, or which throws. `works` is asked about the given graph, then after each
/// pass that changed it, in order: a graph that breaks, is mended and breaks again would mislead a search by halves,
/// and pipelines are short.
/// Throws E0301, E0203 (of the given graph).
Bisection bisectPipeline(ir::Graph graph, PassContext& context, const PipelineOptions& options,
                         const std::function<bool(const ir::Graph&)>& works);

}  // namespace abele::passes
