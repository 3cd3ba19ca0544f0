// Which buffers of a graph are running statistics. Used by compile/ for what replicas may write.
#pragma once

#include <set>
#include <string>

#include "ir/graph.h"

namespace abele::passes {

/// Names of the buffers that hold running statistics of batch or instance normalisation, and of the counters of batches
/// beside them (num_batches_tracked of the same module).
/// A buffer is such a statistic where an operator of normalisation updates it, or a value made of it from which its new
/// contents are made: instance_norm repeats the statistics for every image and takes the mean of what comes back.
/// Requires: any form.   Cost: O(nodes), and as much for each buffer that others update.
std::set<std::string> runningStatistics(const ir::Graph& graph);

}  // namespace abele::passes
