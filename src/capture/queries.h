// Questions about the program that has been recorded so far. Used by annotate.cc, for operators in operators/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "capture/capture.h"
#include "capture/graph_writer.h"

namespace abele::capture {

/// stop - start of two integers of one element, when the program's sums and products show that it is a constant.
/// Requires: no dispatch mode is on.
std::optional<int64_t> constantDifference(const Recording& recording, const GraphWriter& writer, ir::ValueId start,
                                          ir::ValueId stop);
/// Operators whose name contains `part`.
int64_t numOperators(const ir::Graph& graph, const std::string& part);
/// Times that the memory of a value is read.
int64_t numReaders(const ir::Graph& graph, ir::ValueId value);

}  // namespace abele::capture
