// ProgramOptions: OptionValues.programOptions returns them, and a session takes them.
#include "base/error.h"
#include "bind/bind.h"
#include "session/session.h"

namespace py = pybind11;

namespace abele::bind {

void registerSessionOptions(py::module_& module) {
  using compile::ProgramOptions;
  py::enum_<compile::CommGroup>(module, "CommGroup")
      .value("All", compile::CommGroup::kAll)
      .value("Consecutive", compile::CommGroup::kConsecutive)
      .value("Orthogonal", compile::CommGroup::kOrthogonal)
      .value("NoGrouping", compile::CommGroup::kNone);
  py::class_<ProgramOptions>(module, "ProgramOptions")
      .def(
          "setGroupings",
          [](ProgramOptions& self,
             const std::vector<std::tuple<std::string, compile::CommGroup, int64_t, bool>>& list) {
            self.groupings.clear();
            for (const auto& [parameter, type, shards, one_per_replica] : list)
              self.groupings.push_back({parameter, type, shards, one_per_replica});
          },
          py::arg("groupings"), "(parameter, type, replicas in a group, one value per replica) of each.")
      .def_readonly("cache_path", &ProgramOptions::cache_path)
      .def_readonly("cache_lock", &ProgramOptions::cache_lock)
      .def_readwrite("num_devices", &ProgramOptions::num_devices)
      .def(
          "setWeightsOwner",
          [](ProgramOptions& self, uintptr_t id) { self.weights_owner = reinterpret_cast<const void*>(id); },
          py::arg("id"), "Sessions of one owner, which never run at once, share the model's memory.");
}

}  // namespace abele::bind
