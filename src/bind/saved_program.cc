// The description in a saved program, for programs that the other language saved; and values as forms of arguments.
#include <ATen/core/Tensor.h>

#include "abele/structure.h"
#include "abele/version.h"
#include "bind/bind.h"
#include "calls/form_values.h"
#include "compile/compiled_program.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

py::list typesOf(const std::vector<Type>& types) {
  py::list list;
  for (const Type& type : types) list.append(py::make_tuple(static_cast<at::ScalarType>(type.dtype), type.sizes));
  return list;
}

py::dict describe(const std::string& bytes) {
  const compile::CompiledProgram program = compile::decodeProgram(bytes);
  const exe::Executable& executable = program.executable;
  py::list groupings;
  for (const compile::ReplicaGrouping& g : program.groupings)
    groupings.append(py::make_tuple(g.parameter, g.type, g.shards, g.one_per_replica));
  using namespace py::literals;
  return py::dict("training"_a = executable.training, "processes"_a = executable.processes * executable.stage_processes,
                  "input_types"_a = typesOf(program.input_types), "groupings"_a = groupings,
                  "optimizer"_a = program.optimizer);
}

struct Makers {
  py::function tensor, constant, sequence;
};

py::object make(const calls::FormValue& value, const Makers& makers) {
  if (value.kind == 't') return makers.tensor();
  if (value.kind == '=') return makers.constant(value.text);
  if (value.kind == '-') return py::none();
  py::list list;
  py::dict map;
  for (const auto& [key, item] : value.items)
    if (value.kind == '{')
      map[py::str(key)] = make(item, makers);
    else
      list.append(make(item, makers));
  return value.kind == '{' ? py::object(std::move(map)) : makers.sequence(list);
}

}  // namespace

void registerSavedProgram(py::module_& module) {
  module.attr("version") = version();
  module.def("describeProgram", describe, py::arg("program"),
             "What a saved program was compiled for, as {name: value}.");
  module.def(
      "formValues",
      [](const std::string& form, py::function tensor, py::function constant, py::function sequence) {
        const Makers makers{std::move(tensor), std::move(constant), std::move(sequence)};
        py::list values;
        for (const calls::FormValue& value : calls::formValues(form)) values.append(make(value, makers));
        return values;
      },
      py::arg("form"), py::kw_only(), py::arg("tensor"), py::arg("constant"), py::arg("sequence"),
      "The values of a form: what tensor(), constant(text) and sequence(list) make of its parts.");
  const auto form = [](auto value) {
    detail::Flat flat;
    detail::addConstant(flat, value);
    return flat.form;
  };
  // The order of overloads matters: a bool must not match the integer overload.
  module.def("constantForm", [form](bool value) { return form(value); }, py::arg("value").noconvert());
  module.def("constantForm", [form](int64_t value) { return form(value); }, py::arg("value").noconvert());
  module.def("constantForm", [form](double value) { return form(value); }, py::arg("value").noconvert());
  module.def(
      "constantForm", [form](const std::string& value) { return form(std::string_view(value)); }, py::arg("value"));
}

}  // namespace abele::bind
