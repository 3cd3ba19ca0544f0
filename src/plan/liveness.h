// Private to plan/: which nodes touch which base value, and which values share one piece of memory.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/plan.h"

namespace abele::plan {

/// Program positions of touches outside the nodes.
inline constexpr int32_t kTaskStart = -1;
inline constexpr int32_t kTaskEnd = std::numeric_limits<int32_t>::max();

/// One node (by position in Graph::nodes) that makes, reads or writes a base value, through a view or directly.
struct Touch {
  Task task;
  int32_t position = 0;
  bool from_elsewhere = false;  // by a transfer that brings it to another memory space
};

/// A piece of memory: the base values that live in it one after the other, linked by in-place writes.
struct Buffer {
  std::vector<ir::ValueId> members;
  std::vector<Touch> touches;  // of all members; the first is where it is made (inputs have no such touch)
  int64_t bytes = 0;
  int32_t input = -1;          // index into Graph::inputs when it is one
  bool is_sum_of_one = false;  // an accumulator that backward makes its gradient in
  bool is_received = false;    // made by a transfer
};

struct Liveness {
  std::vector<Buffer> buffers;
  std::vector<int32_t> buffer_of;  // by base value id; -1 = never materialised
  /// kUpdate outputs whose contents are made elsewhere and copied into the external at the end of the task.
  std::vector<ir::Output> copied_back;
};

using ir::precedes;
using ir::taskOf;
/// A transfer: no work of its stage's device.
bool isTransfer(const ir::Node& node);
/// One that brings a value for a task; the others refresh the copy of an external.
bool isReceive(const ir::Node& node);

/// When a stage has several rings of frames: where that takes fewer bytes under the schedule, never, or wherever its
/// values can be told apart.
enum class RingRule : uint8_t { kFewestBytes, kTogether, kApart };
struct PlannedStages {
  Plan plan;
  std::vector<int64_t> transient_bytes;  // by stage
};
/// makePlan() by another rule.
PlannedStages planStages(const ir::Graph& graph, const PlanOptions& options, RingRule rule);

/// Throws E0403 when an external cannot be updated without breaking another reader.
Liveness analyseLiveness(const ir::Graph& graph, const PlanOptions& options, const Schedule& schedule);

}  // namespace abele::plan
