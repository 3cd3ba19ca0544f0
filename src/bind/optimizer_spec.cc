// OptimizerSpec: plain data.
#include "bind/bind.h"
#include "session/session.h"

namespace py = pybind11;

namespace abele::bind {

void registerOptimizerSpec(py::module_& module) {
  using host::OptimizerSpec;
  using Kind = passes::OptimizerRules::Kind;
  py::enum_<Kind> kinds(module, "OptimizerKind");
  kinds.value("None_", Kind::kNone);
  for (const OptimizerRow& row : allOptimizers()) kinds.value(row.name, row.kind);
  py::class_<OptimizerState>(module, "OptimizerState")
      .def_readonly("name", &OptimizerState::name)
      .def_readonly("name_in_torch", &OptimizerState::name_in_torch)
      .def_readonly("name_in_poptorch", &OptimizerState::name_in_poptorch);
  py::class_<OptimizerRow>(module, "OptimizerRow")
      .def_readonly("name", &OptimizerRow::name)
      .def_readonly("numbers", &OptimizerRow::numbers)
      .def_readonly("states", &OptimizerRow::states)
      .def_property_readonly("is_of_torch", [](const OptimizerRow& row) { return (row.traits & kOfTorch) != 0; })
      .def_property_readonly("is_fused", [](const OptimizerRow& row) { return (row.traits & kFused) != 0; })
      .def_property_readonly("corrects_bias", [](const OptimizerRow& row) {
        return row.flag.property == &OptimizerGroup::bias_correction;
      });
  module.def("allOptimizers", &allOptimizers, "Rows of src/base/optimizers.def.");
  using Group = passes::OptimizerRules::Group;
  py::class_<Group>(module, "OptimizerGroup")
      .def(py::init<>())
      .def_readwrite("momentum", &Group::momentum)
      .def_readwrite("torch_dampening", &Group::torch_dampening)
      .def_readwrite("centered", &Group::centered)
      .def_readwrite("tf_variant", &Group::tf_variant)
      .def_readwrite("bias_correction", &Group::bias_correction);
  py::class_<OptimizerSpec>(module, "OptimizerSpec")
      .def(py::init<>())
      .def(
          "setKind", [](OptimizerSpec& self, Kind kind) { self.rules.kind = kind; }, py::arg("kind"))
      .def_readwrite("loss_scaling", &OptimizerSpec::loss_scaling)
      .def(
          "setTypes",
          [](OptimizerSpec& self, at::ScalarType accumulator, at::ScalarType first, at::ScalarType second) {
            self.rules.accumulator = static_cast<DType>(accumulator);
            self.rules.first_moment = static_cast<DType>(first);
            self.rules.second_moment = static_cast<DType>(second);
          },
          py::arg("accumulator"), py::arg("first_moment"), py::arg("second_moment"),
          "Element types of the gradient sums and of the moments; without this call they are the parameters'.")
      .def(
          "setMaxGradNorm", [](OptimizerSpec& self, double norm) { self.rules.max_grad_norm = norm; }, py::arg("norm"))
      .def(
          "addGroup",
          [](OptimizerSpec& self, const std::vector<std::string>& parameters, std::map<std::string, double> hypers,
             const Group& group) {
            int index = static_cast<int>(self.groups.size());
            for (const std::string& name : parameters) self.rules.group_of[name] = index;
            self.rules.groups.push_back(group);
            self.groups.push_back(std::move(hypers));
          },
          py::arg("parameters"), py::arg("hypers"), py::arg("group"))
      .def_property_readonly("kind", [](const OptimizerSpec& self) { return self.rules.kind; })
      .def_property_readonly("group_of", [](const OptimizerSpec& self) { return self.rules.group_of; })
      .def_property_readonly("groups", [](const OptimizerSpec& self) { return self.groups; })
      .def_property_readonly("group_rules", [](const OptimizerSpec& self) { return self.rules.groups; })
      .def_property_readonly("max_grad_norm", [](const OptimizerSpec& self) { return self.rules.max_grad_norm; })
      .def_property_readonly("types", [](const OptimizerSpec& self) {
        return std::tuple(dtypeName(self.rules.accumulator), dtypeName(self.rules.first_moment),
                          dtypeName(self.rules.second_moment));
      });
}

}  // namespace abele::bind
