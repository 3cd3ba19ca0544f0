// Explains the placement of a program as text for people. Used by abele.explain(), abele::explain and abele-sim
// --explain.
// Docs: docs/placement.md.
#pragma once

#include <string>

#include "split/auto_split.h"

namespace abele::split {

/// A row for each stage with its source lines, times and bytes; then the predicted step. Times are estimates. graph:
/// the graph that the plan was made of. machine: if it has links, includes the times of transfers on them, with a line
/// for each.
std::string explainStages(const ir::Graph& graph, const plan::Plan& plan, const schedule::Machine& machine = {},
                          const schedule::Replication& replication = {});

/// Alternatives to `taken`: the next best cuts, other numbers of devices, other schedules. graph: the graph that the
/// chain was made of.
std::string explainAlternatives(const ir::Graph& graph, const SplitChain& chain, const SplitOptions& options,
                                const Split& taken);

/// Numbers in these texts: "12.345", and "+2.1 %" relative to another time.
std::string millisecondsText(int64_t ns);
std::string differenceText(int64_t ns, int64_t base_ns);

}  // namespace abele::split
