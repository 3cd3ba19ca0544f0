// SessionReport: figures of a compiled session.
#include "bind/bind.h"
#include "host/session.h"

namespace py = pybind11;

namespace abele::bind {

void registerSessionReport(py::module_& module) {
  using host::SessionReport;
  using Stage = SessionReport::Stage;
  py::class_<Stage>(module, "StageReport")
      .def_readonly("name", &Stage::name)
      .def_readonly("device", &Stage::device)
      .def_readonly("busy_ns", &Stage::busy_ns)
      .def_readonly("waiting_ns", &Stage::waiting_ns)
      .def_readonly("peak_bytes", &Stage::peak_bytes);
  py::class_<SessionReport>(module, "SessionReport")
      .def_readonly("capture_s", &SessionReport::capture_s)
      .def_readonly("compile_s", &SessionReport::compile_s)
      .def_readonly("stages", &SessionReport::stages)
      .def_readonly("bubble", &SessionReport::bubble)
      .def_readonly("step_ns", &SessionReport::step_ns);
}

}  // namespace abele::bind
