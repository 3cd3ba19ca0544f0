// Session: the compiled program of a model, to read it and to set its state. A model runs it.
#include "session/session.h"

#include <memory>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "bind/bind.h"
#include "bind/gil.h"
#include "compile/compiled_program.h"
#include "ir/text.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using Handle = py::class_<session::Session, std::shared_ptr<session::Session>>;

}  // namespace

void registerSession(py::module_& module) {
  using session::Session;
  py::enum_<session::Way>(module, "Way", "What a latency is of (src/session/session.h).")
      .value("HostToDevice", session::Way::kHostToDevice)
      .value("Compute", session::Way::kCompute)
      .value("DeviceToHost", session::Way::kDeviceToHost)
      .value("All", session::Way::kAll);
  Handle(module, "Session")
      .def("isCompiled", &Session::isCompiled)
      .def("isOfParent", &Session::isOfParent)
      .def("copyWeightsToHost", &Session::copyWeightsToHost, py::call_guard<NoGil>())
      .def("copyWeightsToDevice", &Session::copyWeightsToDevice, py::call_guard<NoGil>())
      .def("copyBuffersToDevice", &Session::copyBuffersToDevice, py::arg("names"))
      .def("setOptimizer", &Session::setOptimizer, py::arg("optimizer"))
      .def("hasOwnWeightsAlone", &Session::hasOwnWeightsAlone)
      .def("optimizerState", &Session::optimizerState)
      .def("setOptimizerState", &Session::setOptimizerState, py::arg("state"))
      .def("lossScale", &Session::lossScale)
      .def("gradientSums", &Session::gradientSums)
      .def("rngState", &Session::rngState)
      .def("setRngState", &Session::setRngState, py::arg("state"))
      .def("graphText", [](const Session& self) { return ir::print(self.graph()); })
      .def("capturedText", &Session::capturedText)
      .def("planText", [](const Session& self) { return plan::print(self.plan()); })
      .def("memoryText", [](const Session& self) { return plan::memoryText(self.memoryReport()); })
      .def("memoryJson", [](const Session& self) { return plan::memoryJson(self.memoryReport()); })
      .def("costs", &Session::costs)
      .def("callNs", &Session::callNs)
      .def("pieces", &Session::pieces)
      .def("explain", &Session::explain)
      .def("executableText", [](const Session& self) { return exe::print(self.executable()); })
      .def("stageDevices", &Session::stageDevices)
      .def("tensorNames", &Session::tensorNames)
      .def("anchor", &Session::anchor, py::arg("short_name"))
      .def("perfCounters", [](const Session& self) { return perfCountersDict(self.perfCounters()); })
      .def(
          "latency",
          [](const Session& self, session::Way way) {
            const session::Latency found = self.latency(way);
            return std::tuple(found.least, found.most, found.average);
          },
          py::arg("way"), "(min, max, average) of the last call.")
      .def("cycles", &Session::cycles)
      .def("report", [](const Session& self) { return reportDict(self.report()); });
}

}  // namespace abele::bind
