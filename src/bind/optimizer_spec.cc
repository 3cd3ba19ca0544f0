// OptimizerSpec: plain data.
#include "bind/bind.h"
#include "host/session.h"

namespace py = pybind11;

namespace abele::bind {

void registerOptimizerSpec(py::module_& module) {
  using host::OptimizerSpec;
  using Kind = passes::OptimizerRules::Kind;
  py::enum_<Kind>(module, "OptimizerKind")
      .value("None_", Kind::kNone)
      .value("SGD", Kind::kSgd)
      .value("Adam", Kind::kAdam)
      .value("AdamW", Kind::kAdamW);
  py::class_<OptimizerSpec>(module, "OptimizerSpec")
      .def(py::init<>())
      .def(
          "setKind", [](OptimizerSpec& self, Kind kind) { self.rules.kind = kind; }, py::arg("kind"))
      .def(
          "addGroup",
          [](OptimizerSpec& self, const std::vector<std::string>& parameters, std::map<std::string, double> hypers,
             bool momentum, bool nesterov, bool amsgrad) {
            int index = static_cast<int>(self.groups.size());
            for (const std::string& name : parameters) self.rules.group_of[name] = index;
            self.rules.groups.push_back({momentum, nesterov, amsgrad});
            self.groups.push_back(std::move(hypers));
          },
          py::arg("parameters"), py::arg("hypers"), py::arg("momentum"), py::arg("nesterov"), py::arg("amsgrad"));
}

}  // namespace abele::bind
