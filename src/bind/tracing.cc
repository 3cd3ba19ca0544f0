// The trace file of this process, for profiling.Channel and libpvti.
#include "session/trace_file.h"

#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {

void registerTracing(py::module_& module) {
  using host::TraceFile;
  py::class_<TraceFile>(module, "TraceFile")
      .def_property_readonly("path", &TraceFile::path)
      .def("close", &TraceFile::close, py::call_guard<NoGil>());
  module.def("traceFile", &TraceFile::current, py::arg("program"), py::return_value_policy::reference);
  module.def("isTracing", &host::isTracing, py::arg("program"));
  module.def("traceEvent", &host::traceEvent, py::call_guard<NoGil>());
  module.def("traceSpan", &host::traceSpan, py::call_guard<NoGil>());
  module.def("traceClock", &TraceFile::now);
}

}  // namespace abele::bind
