// The trace file of this process, for profiling.Channel and libpvti.
#include "session/trace_file.h"

#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {

void registerTracing(py::module_& module) {
  using host::TraceFile;
  module.def(
      "tracesProcess", [](const std::string& program) { return TraceFile::current(program) != nullptr; },
      py::arg("program"));
  module.def(
      "closeTraceOfProcess",
      [] {
        if (TraceFile* file = TraceFile::current()) file->close();
      },
      py::call_guard<NoGil>());
  module.def("isTracing", &host::isTracing, py::arg("program"));
  module.def("traceEvent", &host::traceEvent, py::call_guard<NoGil>());
  module.def("traceSpan", &host::traceSpan, py::call_guard<NoGil>());
  module.def("traceClock", &TraceFile::now);
}

}  // namespace abele::bind
