// From a captured graph and options to a lowered graph and its plan. Used by session.cc, and by recompute_to_fit.cc and
// memory_limit.cc, which try other options.
#pragma once

#include <vector>

#include "compile/program_options.h"

namespace abele::host {

/// What is lowered: the captured graph with the outputs and anchors of the session.
struct Captured {
  ir::Graph graph;
  std::vector<ir::ValueId> kept;  // values that the program asks to keep in spite of recomputation
  passes::OptimizerRules rules;
};

plan::PlanOptions planOptions(const ProgramOptions& options);
/// Stages, updates, recomputation and what the schedule needs. ProgramOptions::recompute_to_fit is looked at.
ir::Graph runPasses(const Captured& captured, const ProgramOptions& options);

/// The values that are kept in spite of recomputation so that the plan fits options.device_memory in the least extra
/// time that is found. lowered: by the passes without recomputation. E0405 is left to the caller: when nothing fits, it
/// returns what needs the fewest bytes on devices that do not fit. Deterministic.
struct Recomputed {
  bool needed = false;            // false: everything fits, nothing is made again
  std::vector<ir::ValueId> kept;  // for passes::RecomputeRules
  int64_t values = 0, of = 0;     // made again, and how many could be
  int64_t extra_ns = 0;           // estimated, of a micro-batch on all devices
};
Recomputed recomputeToFit(const ir::Graph& lowered, const Captured& captured, const ProgramOptions& options);

/// The same program with micro-batches of fewer rows, captured again; throws what capturing throws.
using CaptureSmaller = std::function<Captured(const ProgramOptions& options)>;
/// Throws E0405 when a device needs more bytes than options.device_memory gives it.
/// rows: of a micro-batch; 0: unknown.
void requireMemory(const exe::Executable& executable, const ir::Graph& graph, const plan::Plan& plan,
                   const Captured& captured, const ProgramOptions& options, int64_t rows,
                   const CaptureSmaller& capture_smaller);
/// The same for a program whose graph nobody has.
void requireMemory(const exe::Executable& executable, const ProgramOptions& options);

}  // namespace abele::host
