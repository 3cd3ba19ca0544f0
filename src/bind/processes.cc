// Joins and leaves the group of processes that train one model, and reads the launcher's variables.
#include "processes/processes.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "abele/processes.h"
#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {

void registerProcesses(py::module_& module) {
  using MakeGroup = std::function<std::pair<std::string, std::string>(int64_t, std::string, int64_t, int64_t)>;
  module.def(
      "joinProcesses",
      [](int64_t index, int64_t count, const std::string& group, MakeGroup make) {
        collective::MakeDeviceGroup made;
        if (make)
          made = [make = calledWithGil(std::move(make))](int64_t process, const std::string& kind, int64_t first,
                                                         int64_t second) {
            const auto [name, why_not] = make(process, kind, first, second);
            return collective::DeviceGroup{.name = name, .why_not = why_not};
          };
        processes::joinProcesses({.index = index, .count = count, .group = group}, std::move(made));
      },
      py::arg("index"), py::arg("count"), py::arg("group"), py::arg("make") = py::none(), py::call_guard<NoGil>());
  module.def(
      "synchronizeProcesses",
      [](int64_t index, int64_t count, const std::string& group) {
        processes::synchronize({.index = index, .count = count, .group = group});
      },
      py::arg("index"), py::arg("count"), py::arg("group"), py::call_guard<NoGil>());
  module.def(
      "anyOfProcesses",
      [](int64_t index, int64_t count, const std::string& group, bool value) {
        return processes::anyOf({.index = index, .count = count, .group = group}, value);
      },
      py::arg("index"), py::arg("count"), py::arg("group"), py::arg("value"), py::call_guard<NoGil>());
  py::module_ launched = module.def_submodule("popdist");
  launched.def("isPopdistEnvSet", &popdist::isPopdistEnvSet);
  launched.def("getNumTotalReplicas", &popdist::getNumTotalReplicas);
  launched.def("getNumLocalReplicas", &popdist::getNumLocalReplicas);
  launched.def("getReplicaIndexOffset", &popdist::getReplicaIndexOffset);
  launched.def("getNumIpusPerReplica", &popdist::getNumIpusPerReplica);
  launched.def("getNumInstances", &popdist::getNumInstances);
  launched.def("getInstanceIndex", &popdist::getInstanceIndex);
  module.def("leaveProcesses", &processes::leaveProcesses, py::call_guard<NoGil>());
}

}  // namespace abele::bind
