// The trace file of this process, for profiling.Channel and libpvti; report pages; and what notebooks show.
#include "base/trace_file.h"

#include <string>

#include <nlohmann/json.hpp>

#include "bind/bind.h"
#include "bind/gil.h"
#include "report/notebook.h"
#include "report/report_page.h"
#include "session/session.h"

namespace py = pybind11;

namespace abele::bind {

void registerTracing(py::module_& module) {
  using abele::TraceFile;
  module.def(
      "tracesProcess", [](const std::string& program) { return TraceFile::current(program) != nullptr; },
      py::arg("program"));
  module.def(
      "closeTraceOfProcess",
      [] {
        if (TraceFile* file = TraceFile::current()) file->close();
      },
      py::call_guard<NoGil>());
  module.def("isTracing", &isTracing, py::arg("program"));
  module.def("traceEvent", &traceEvent, py::call_guard<NoGil>());
  module.def("traceSpan", &traceSpan, py::call_guard<NoGil>());
  module.def(
      "writeReportPage",
      [](const std::string& path, session::Session& session, std::string title, std::string kind,
         std::vector<std::pair<std::string, std::string>> options, int64_t front_ns) {
        report::writeReportPage(path, session, {std::move(title), std::move(kind), std::move(options), front_ns});
      },
      py::arg("path"), py::arg("session"), py::kw_only(), py::arg("title"), py::arg("kind"), py::arg("options"),
      py::arg("front_ns"), py::call_guard<NoGil>());
  module.def("writeTracePage", &report::writeTracePage, py::arg("path"), py::arg("trace"), py::call_guard<NoGil>());
  module.def("factsOf", py::overload_cast<const session::Session&>(&report::factsOf), py::arg("session"));
  module.def(
      "notebookOfReport",
      [](const std::string& title, const std::string& report, const std::vector<std::string>& facts) {
        return report::notebookOfReport(title, nlohmann::ordered_json::parse(report), facts);
      },
      py::arg("title"), py::arg("report"), py::arg("facts") = std::vector<std::string>());
  module.def("notebookOfModel", &report::notebookOfModel, py::arg("title"));
  module.def(
      "notebookOfSimulation",
      [](const std::string& simulation, const std::string& trace) {
        return report::notebookOfSimulation(nlohmann::ordered_json::parse(simulation),
                                            nlohmann::ordered_json::parse(trace));
      },
      py::arg("simulation"), py::arg("trace"));
  module.def("traceClock", &TraceFile::now);
}

}  // namespace abele::bind
