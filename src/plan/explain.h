// Why a program is placed as it is, as text for people. Behind abele.explain(), abele::explain and abele-sim --explain.
// Docs: docs/placement.md.
#pragma once

#include <string>

#include "plan/auto_split.h"

namespace abele::plan {

/// A row for each stage: from which line to which, times, bytes; then the predicted step. Times are estimates.
/// graph: the one that the plan was made of. machine: with links, what is handed over on them is timed too, and told of
/// each transfer. As text: "12.345".
std::string explainStages(const ir::Graph& graph, const Plan& plan, const Machine& machine = {},
                          const Replication& replication = {});

/// What else could have been: the next best cuts, other numbers of devices, other schedules, against `taken`.
/// graph: the one that the chain was made of.
std::string explainAlternatives(const ir::Graph& graph, const SplitChain& chain, const SplitOptions& options,
                                const Split& taken);

/// "12.345" and "+2.1 %" of another time: for these texts.
std::string millisecondsText(int64_t ns);
std::string differenceText(int64_t ns, int64_t base_ns);

}  // namespace abele::plan
