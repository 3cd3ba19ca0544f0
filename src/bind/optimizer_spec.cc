// Optimizers by the names of their fields, and OptimizerSpec: plain data.
#include "bind/bind.h"
#include "model/optimizer_fields.h"
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
  using host::OptimizerFields;
  py::class_<OptimizerFields>(module, "OptimizerFields", "See src/model/optimizer_fields.h.")
      .def(py::init([](Kind kind, std::vector<host::Fields> groups, double loss_scaling, double max_grad_norm,
                       const std::map<std::string, at::ScalarType>& types, bool use_combined_accum,
                       bool momentum_varies, bool follows_torch) {
             OptimizerFields fields{.kind = kind,
                                    .groups = std::move(groups),
                                    .loss_scaling = loss_scaling,
                                    .max_grad_norm = max_grad_norm,
                                    .use_combined_accum = use_combined_accum,
                                    .momentum_varies = momentum_varies,
                                    .follows_torch = follows_torch};
             for (const auto& [name, type] : types) fields.types[name] = static_cast<DType>(type);
             return fields;
           }),
           py::kw_only(), py::arg("kind"), py::arg("groups"), py::arg("loss_scaling"), py::arg("max_grad_norm"),
           py::arg("types"), py::arg("use_combined_accum"), py::arg("momentum_varies"), py::arg("follows_torch"))
      .def_readonly("kind", &OptimizerFields::kind)
      .def_readonly("groups", &OptimizerFields::groups)
      .def_readonly("loss_scaling", &OptimizerFields::loss_scaling)
      .def_readonly("max_grad_norm", &OptimizerFields::max_grad_norm)
      .def_readonly("momentum_varies", &OptimizerFields::momentum_varies)
      .def_property_readonly("types",
                             [](const OptimizerFields& self) {
                               std::map<std::string, at::ScalarType> types;
                               for (const auto& [name, type] : self.types)
                                 types[name] = static_cast<at::ScalarType>(type);
                               return types;
                             })
      .def(
          "numbers",
          [](const OptimizerFields& self, size_t group) { return host::numbersOf(self, self.groups.at(group)); },
          py::arg("group"), "What the device gets of a group.")
      .def("hasSameNumbers", &host::haveSameNumbers, py::arg("other"))
      .def("spec", &host::specOf, py::arg("parameters"), "Parameters: names, by group.");
  py::class_<OptimizerSpec>(module, "OptimizerSpec")
      .def(py::init<>())
      .def_property_readonly(
          "fields",
          [](const OptimizerSpec& self) {
            return self.rules.kind == Kind::kNone ? std::nullopt : std::optional(host::fieldsOf(self));
          },
          "None: there is no optimizer.")
      .def_property_readonly("group_of", [](const OptimizerSpec& self) { return self.rules.group_of; });
}

}  // namespace abele::bind
