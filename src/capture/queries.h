// Questions about the program that has been recorded so far. Used by annotate.cc, for operators in operators/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "capture/capture.h"
#include "capture/graph_writer.h"

namespace abele::capture {

/// stop - start of two tensors of one integer, if the program's sums and products show that it is constant; else
/// nothing.
/// Requires: no dispatch mode is on.
std::optional<int64_t> constantDifference(const Recording& recording, const GraphWriter& writer, ir::ValueId start,
                                          ir::ValueId stop);
/// Number of operators whose name contains `part`.
int64_t numOperators(const ir::Graph& graph, const std::string& part);
/// Number of reads of a value's memory.
int64_t numReaders(const ir::Graph& graph, ir::ValueId value);

}  // namespace abele::capture
