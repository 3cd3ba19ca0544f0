// Text form of a graph: print and parse are inverse. Grammar: docs/ir.md.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace abele::ir {

std::string print(const Graph& graph);
/// Throws UserError E0202 that lists every mistake ("line 4: unknown type f31").
Graph parse(std::string_view text);

}  // namespace abele::ir
