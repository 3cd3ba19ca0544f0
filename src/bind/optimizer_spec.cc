// Optimizers by the names of their fields, and OptimizerSpec: plain data.
#include "bind/bind.h"
#include "optimizer/optimizer_fields.h"
#include "session/session.h"

namespace py = pybind11;

namespace abele::bind {

void registerOptimizerSpec(py::module_& module) {
  using compile::OptimizerSpec;
  using Kind = passes::OptimizerRules::Kind;
  py::enum_<Kind> kinds(module, "OptimizerKind");
  kinds.value("None_", Kind::kNone);
  for (const OptimizerRow& row : allOptimizers()) kinds.value(row.name, row.kind);
  py::class_<OptimizerRow>(module, "OptimizerRow")
      .def_readonly("name", &OptimizerRow::name)
      .def_readonly("numbers", &OptimizerRow::numbers)
      .def_property_readonly("is_of_torch", [](const OptimizerRow& row) { return (row.traits & kOfTorch) != 0; });
  module.def("allOptimizers", &allOptimizers, "Rows of src/base/optimizers.def.");
  using optimizer::OptimizerFields;
  py::class_<OptimizerFields>(module, "OptimizerFields", "See src/optimizer/optimizer_fields.h.")
      .def_readonly("kind", &OptimizerFields::kind)
      .def_readonly("groups", &OptimizerFields::groups)
      .def_readonly("loss_scaling", &OptimizerFields::loss_scaling)
      .def_readonly("max_grad_norm", &OptimizerFields::max_grad_norm)
      .def_readonly("momentum_varies", &OptimizerFields::momentum_varies)
      .def_property_readonly("types", [](const OptimizerFields& self) {
        std::map<std::string, at::ScalarType> types;
        for (const auto& [name, type] : self.types) types[name] = static_cast<at::ScalarType>(type);
        return types;
      });
  py::class_<OptimizerSpec>(module, "OptimizerSpec")
      .def(py::init<>())
      .def_property_readonly(
          "fields",
          [](const OptimizerSpec& self) {
            return self.rules.kind == Kind::kNone ? std::nullopt : std::optional(optimizer::fieldsOf(self));
          },
          "None: there is no optimizer.")
      .def_property_readonly("group_of", [](const OptimizerSpec& self) { return self.rules.group_of; });
}

}  // namespace abele::bind
