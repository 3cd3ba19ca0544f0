// Private to plan/: which nodes touch which base value, and which values share one piece of memory.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/plan.h"
#include "schedule/schedule.h"

namespace abele::plan {

/// Positions in the program for touches outside the nodes.
inline constexpr int32_t kTaskStart = -1;
inline constexpr int32_t kTaskEnd = std::numeric_limits<int32_t>::max();

/// A use of a base value by one node (by position in Graph::nodes) that makes, reads or writes it, directly or through
/// a view.
struct Touch {
  Task task;
  int32_t position = 0;
  bool from_elsewhere = false;  // a transfer reads it to bring it to another memory space
};

/// A piece of memory. Base values live in it one after the other, linked by in-place writes.
struct Buffer {
  std::vector<ir::ValueId> members;
  std::vector<Touch> touches;  // by any member; the first one makes the value (inputs have no such touch)
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
/// True for a transfer that brings a value for a task. Other transfers refresh the copy of an external.
bool isReceive(const ir::Node& node);

/// When a stage gets several rings of frames: if that takes fewer bytes under the schedule, never, or whenever its
/// values can be separated.
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
