// Private to plan/: the nodes that use each base value, and the values that share one piece of memory.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/plan.h"
#include "schedule/schedule.h"

namespace abele::plan {

/// Positions in the program for uses outside the nodes.
inline constexpr int32_t kTaskStart = -1;
inline constexpr int32_t kTaskEnd = std::numeric_limits<int32_t>::max();

/// A use of a base value by one node (by position in Graph::nodes) that makes, reads or writes it, directly or through
/// a view.
struct Touch {
  Task task;
  int32_t position = 0;
  bool from_elsewhere = false;  // a transfer reads it to copy it to another memory space
};

/// A piece of memory. The base values in it follow each other by in-place writes.
struct Buffer {
  std::vector<ir::ValueId> members;
  std::vector<Touch> touches;  // uses of any of its values; the first one makes the value, except for inputs
  int64_t bytes = 0;
  int32_t input = -1;          // index into Graph::inputs, if it is an input
  bool is_sum_of_one = false;  // an accumulator in whose memory backward makes the gradient
  bool is_received = false;    // a transfer makes it
};

struct Liveness {
  std::vector<Buffer> buffers;
  std::vector<int32_t> buffer_of;  // by base value id; -1: never in memory
  /// kUpdate outputs whose contents are made in other memory and copied into the external at the end of the task.
  std::vector<ir::Output> copied_back;
};

using ir::precedes;
using ir::taskOf;
/// True for a transfer, which is work of a link and not of the stage's device.
bool isTransfer(const ir::Node& node);
/// True for a transfer that copies a value to the device of a task that reads it. Other transfers refresh the copy of
/// an external.
bool isReceive(const ir::Node& node);

/// When a stage gets several rings of frames. kFewestBytes: if that takes fewer bytes under the schedule. kTogether:
/// never. kApart: whenever its values can be separated.
enum class RingRule : uint8_t { kFewestBytes, kTogether, kApart };
struct PlannedStages {
  Plan plan;
  std::vector<int64_t> transient_bytes;  // by stage
};
/// Makes a plan like makePlan(), but with this rule for rings.
PlannedStages planStages(const ir::Graph& graph, const PlanOptions& options, RingRule rule);

/// Throws E0403 if updating an external would break another reader.
Liveness analyseLiveness(const ir::Graph& graph, const PlanOptions& options, const schedule::Schedule& schedule);

}  // namespace abele::plan
