// Session: the compiled program of a model, to read it and to set its state. A model runs it.
#include "session/session.h"

#include <memory>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "bind/bind.h"
#include "bind/gil.h"
#include "compile/compiled_program.h"
#include "ir/text.h"
#include "session/latency.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using Handle = py::class_<session::Session, std::shared_ptr<session::Session>>;

template <auto method>
auto withoutGil() {
  return [](session::Session& self) {
    const NoGil no_gil;
    (self.*method)();
  };
}

}  // namespace

void registerSession(py::module_& module) {
  using session::Session;
  py::enum_<session::Way>(module, "Way", "What a latency is of (src/session/latency.h).")
      .value("HostToDevice", session::Way::kHostToDevice)
      .value("Compute", session::Way::kCompute)
      .value("DeviceToHost", session::Way::kDeviceToHost)
      .value("All", session::Way::kAll);
  Handle(module, "Session")
      .def("isCompiled", [](const Session& self) { return self.isCompiled(); })
      .def("isOfParent", [](const Session& self) { return self.isOfParent(); })
      .def("copyWeightsToHost", withoutGil<&Session::copyWeightsToHost>())
      .def("copyWeightsToDevice", withoutGil<&Session::copyWeightsToDevice>())
      .def(
          "copyBuffersToDevice",
          [](Session& self, const std::vector<std::string>& names) { self.copyBuffersToDevice(names); },
          py::arg("names"))
      .def(
          "setOptimizer", [](Session& self, const compile::OptimizerSpec& spec) { self.setOptimizer(spec); },
          py::arg("optimizer"))
      .def("hasOwnWeightsAlone", &Session::hasOwnWeightsAlone)
      .def("optimizerState", [](const Session& self) { return self.optimizerState(); })
      .def(
          "setOptimizerState",
          [](Session& self, const std::map<std::string, at::Tensor>& state) { self.setOptimizerState(state); },
          py::arg("state"))
      .def("lossScale", [](const Session& self) { return self.lossScale(); })
      .def("gradientSums", [](const Session& self) { return self.gradientSums(); })
      .def("rngState", [](const Session& self) { return self.rngState(); })
      .def(
          "setRngState", [](Session& self, const at::Tensor& state) { self.setRngState(state); }, py::arg("state"))
      .def("graphText", [](const Session& self) { return ir::print(self.graph()); })
      .def("capturedText", [](const Session& self) { return self.capturedText(); })
      .def("planText", [](const Session& self) { return plan::print(self.plan()); })
      .def("memoryText", [](const Session& self) { return plan::memoryText(self.memoryReport()); })
      .def("memoryJson", [](const Session& self) { return plan::memoryJson(self.memoryReport()); })
      .def("costs", [](const Session& self) { return self.costs(); })
      .def("callNs", [](const Session& self) { return self.callNs(); })
      .def("pieces", [](const Session& self) { return self.pieces(); })
      .def("explain", [](const Session& self) { return self.explain(); })
      .def("executableText", [](const Session& self) { return exe::print(self.executable()); })
      .def("stageDevices", [](const Session& self) { return self.stageDevices(); })
      .def("tensorNames", [](const Session& self) { return self.tensorNames(); })
      .def(
          "anchor", [](const Session& self, const std::string& name) { return self.anchor(name); },
          py::arg("short_name"))
      .def("perfCounters", [](const Session& self) { return perfCountersDict(self.perfCounters()); })
      .def(
          "latency",
          [](const Session& self, session::Way way) {
            const session::Latency found = session::latencyOf(self.perfCounters(), way);
            return std::tuple(found.least, found.most, found.average);
          },
          py::arg("way"), "(min, max, average) of the last call.")
      .def("cycles", [](const Session& self) { return self.cycles(); })
      .def("report", [](const Session& self) { return reportDict(self.report()); });
}

}  // namespace abele::bind
