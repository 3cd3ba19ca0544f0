// From a captured graph and options to a lowered graph and its plan. Used by compiler.cc, and by placement.cc,
// recompute_to_fit.cc and memory_limit.cc, which try other options.
#pragma once

#include <functional>
#include <vector>

#include "compile/program_options.h"

namespace abele::compile {

/// The input of lowering: the captured graph with the outputs and anchors of the session.
struct Captured {
  ir::Graph graph;
  std::vector<ir::ValueId> kept;  // values that recomputation must not drop
  passes::OptimizerRules rules;
};

plan::PlanOptions planOptions(const ProgramOptions& options);
/// Adds stages, updates, recomputation (also for ProgramOptions::recompute_to_fit) and the nodes that the schedule
/// needs.
ir::Graph runPasses(const Captured& captured, const ProgramOptions& options);

/// Searches for the values to keep so that the plan fits options.device_memory and recomputation takes least time.
/// lowered: the graph after the passes without recomputation, whose stages are whole. divide: empty, or returns the
/// graph that recomputes by these rules and whose stages are divided. If no choice fits, returns the one with the
/// fewest bytes on the devices that do not fit; the caller throws E0405. Deterministic.
struct Recomputed {
  bool needed = false;            // false: everything fits without recomputation
  std::vector<ir::ValueId> kept;  // for passes::RecomputeRules
  int64_t values = 0, of = 0;     // number of values that are recomputed, and of values that could be
  int64_t extra_ns = 0;           // estimated, per micro-batch over all devices
};
using Divide = std::function<ir::Graph(const passes::RecomputeRules& rules)>;
Recomputed recomputeToFit(const ir::Graph& lowered, const Captured& captured, const ProgramOptions& options,
                          const Divide& divide);

/// Captures the same program with micro-batches of fewer rows. Throws any error of the capture.
using CaptureSmaller = std::function<Captured(const ProgramOptions& options)>;
/// Throws E0405 if a device needs more bytes than options.device_memory allows.
/// rows: rows of a micro-batch; 0: unknown.
void requireMemory(const exe::Executable& executable, const ir::Graph& graph, const plan::Plan& plan,
                   const Captured& captured, const ProgramOptions& options, int64_t rows,
                   const CaptureSmaller& capture_smaller);
/// Does the same for a program that was loaded without its graph.
void requireMemory(const exe::Executable& executable, const ProgramOptions& options);

}  // namespace abele::compile
