// The figures of a session as dicts: {"capture_s", "compile_s", "phases", "from_cache", "stages": [{...}], "bubble",
// "step_ns", "sent_bytes", "off_chip_bytes", "off_chip_file_bytes", "heap_allocations", "workspace_bytes",
// "shared_weight_bytes", "schedule", "schedule_reason", "links"}.
#include "bind/bind.h"
#include "session/session.h"

namespace py = pybind11;

namespace abele::bind {

py::dict reportDict(const session::SessionReport& report) {
  py::list stages;
  for (const auto& stage : report.stages) {
    py::dict row;
    row["name"] = stage.name;
    row["device"] = stage.device;
    row["replica"] = stage.replica;
    row["busy_ns"] = stage.busy_ns;
    row["waiting_ns"] = stage.waiting_ns;
    row["peak_bytes"] = stage.peak_bytes;
    row["mapped_bytes"] = stage.mapped_bytes;
    row["resident_bytes"] = stage.resident_bytes;
    stages.append(row);
  }
  py::dict result;
  result["capture_s"] = report.capture_s;
  result["compile_s"] = report.compile_s;
  result["phases"] = report.phases;
  result["from_cache"] = report.from_cache;
  result["stages"] = stages;
  result["bubble"] = report.bubble;
  result["step_ns"] = report.step_ns;
  result["sent_bytes"] = report.sent_bytes;
  result["off_chip_bytes"] = report.off_chip_bytes;
  result["off_chip_file_bytes"] = report.off_chip_file_bytes;
  result["heap_allocations"] = report.heap_allocations;
  result["workspace_bytes"] = report.workspace_bytes;
  result["shared_weight_bytes"] = report.shared_weight_bytes;
  result["schedule"] = report.schedule;
  result["schedule_reason"] = report.schedule_reason;
  result["links"] = report.links;
  return result;
}

py::dict perfCountersDict(const session::PerfCounters& counters) {
  // One list of times per tensor.
  py::dict result;
  result["input"] = counters.input;
  result["input_complete"] = counters.input_complete;
  result["output"] = counters.output;
  result["output_complete"] = counters.output_complete;
  return result;
}

}  // namespace abele::bind
