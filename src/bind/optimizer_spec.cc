// OptimizerSpec: plain data.
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
  py::class_<OptimizerSpec>(module, "OptimizerSpec")
      .def_property_readonly("kind", [](const OptimizerSpec& self) { return self.rules.kind; })
      .def_property_readonly("groups",
                             [](const OptimizerSpec& self) {
                               std::vector<optimizer::Fields> groups;
                               for (size_t i = 0; i < self.groups.size(); ++i)
                                 groups.push_back(optimizer::fieldsOf(self, i));
                               return groups;
                             })
      .def_readonly("loss_scaling", &OptimizerSpec::loss_scaling)
      .def_property_readonly("max_grad_norm", [](const OptimizerSpec& self) { return self.rules.max_grad_norm; })
      .def_property_readonly("momentum_varies", &optimizer::momentumVaries)
      .def_property_readonly(
          "types",
          [](const OptimizerSpec& self) {
            std::vector<std::optional<at::ScalarType>> types(3);
            const DType own[] = {self.rules.accumulator, self.rules.first_moment, self.rules.second_moment};
            for (size_t i = 0; i < types.size(); ++i)
              if (own[i] != DType::kUndefined) types[i] = static_cast<at::ScalarType>(own[i]);
            return types;
          },
          "Element types of gradient sums, first and second moments. None: the parameters'.")
      .def_property_readonly("group_of", [](const OptimizerSpec& self) { return self.rules.group_of; });
}

}  // namespace abele::bind
