// The figures of a session as dicts.
#include "bind/bind.h"
#include "session/session.h"

namespace py = pybind11;

namespace abele::bind {

using namespace py::literals;

py::dict reportDict(const session::SessionReport& report) {
  py::list stages;
  for (const auto& stage : report.stages)
    stages.append(py::dict("name"_a = stage.name, "device"_a = stage.device, "replica"_a = stage.replica,
                           "busy_ns"_a = stage.busy_ns, "waiting_ns"_a = stage.waiting_ns,
                           "peak_bytes"_a = stage.peak_bytes, "mapped_bytes"_a = stage.mapped_bytes,
                           "resident_bytes"_a = stage.resident_bytes));
  return py::dict("capture_s"_a = report.capture_s, "compile_s"_a = report.compile_s, "phases"_a = report.phases,
                  "from_cache"_a = report.from_cache, "stages"_a = stages, "bubble"_a = report.bubble,
                  "step_ns"_a = report.step_ns, "sent_bytes"_a = report.sent_bytes,
                  "off_chip_bytes"_a = report.off_chip_bytes, "off_chip_file_bytes"_a = report.off_chip_file_bytes,
                  "heap_allocations"_a = report.heap_allocations, "workspace_bytes"_a = report.workspace_bytes,
                  "shared_weight_bytes"_a = report.shared_weight_bytes, "schedule"_a = report.schedule,
                  "schedule_reason"_a = report.schedule_reason, "links"_a = report.links);
}

py::dict perfCountersDict(const session::PerfCounters& counters) {
  // One list of times per tensor.
  return py::dict("input"_a = counters.input, "input_complete"_a = counters.input_complete,
                  "output"_a = counters.output, "output_complete"_a = counters.output_complete);
}

}  // namespace abele::bind
