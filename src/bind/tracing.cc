// The trace file of this process, for profiling.Channel and libpvti.
#include "session/trace_file.h"

#include <string>

#include "bind/bind.h"
#include "bind/gil.h"
#include "session/session.h"
#include "session/timeline.h"

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
  module.def(
      "traceLastCall",
      [](host::Session& session, const std::string& name, const std::string& path) {
        const std::shared_ptr<TraceFile> file = TraceFile::open(path);
        host::Timeline timeline(*file, name);
        timeline.note(session);
        timeline.predict(session);
        file->close();
      },
      py::arg("session"), py::arg("name"), py::arg("path"), py::call_guard<NoGil>());
  module.def("traceClock", &TraceFile::now);
}

}  // namespace abele::bind
