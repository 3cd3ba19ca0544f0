// Finds the buffers of a graph that are running statistics. Used by compile/ to decide what replicas may write.
#pragma once

#include <set>
#include <string>

#include "ir/graph.h"

namespace abele::passes {

/// Names of the buffers that hold running statistics of batch or instance normalisation, and of the counters of batches
/// in the same modules (num_batches_tracked).
/// A buffer is such a statistic if an operator of normalisation updates it. It also is one if the operator updates a
/// value computed from the buffer, and the buffer's new contents are computed from the result: instance_norm repeats
/// the statistics for every image and takes the mean of the results.
/// Requires: any form.   Cost: O(nodes), and the same again for each buffer that other operators update.
std::set<std::string> runningStatistics(const ir::Graph& graph);

}  // namespace abele::passes
