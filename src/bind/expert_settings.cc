// Expert settings of Python, in the core's form.
#include "compile/expert_settings.h"
#include "base/error.h"
#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

host::OptionValue toOptionValue(const py::handle& given) {
  if (py::isinstance<py::bool_>(given)) return host::OptionValue(given.cast<bool>());
  if (py::isinstance<py::int_>(given)) {
    int too_large = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(given.ptr(), &too_large);
    return too_large == 0 ? host::OptionValue(number) : host::OptionValue(given.cast<uint64_t>());
  }
  if (py::isinstance<py::float_>(given)) return host::OptionValue(given.cast<double>());
  if (py::isinstance<py::dict>(given)) {
    host::OptionMap map;
    for (const auto& [name, value] : given.cast<py::dict>())
      map.emplace(name.cast<std::string>(), toOptionValue(value));
    return host::OptionValue(std::move(map));
  }
  if (py::isinstance<py::str>(given)) return host::OptionValue(given.cast<std::string>());
  host::OptionList list;
  for (const py::handle each : given) list.push_back(toOptionValue(each));
  return host::OptionValue(std::move(list));
}

}  // namespace

void registerExpertSettings(py::module_& module) {
  module.def(
      "requireAvailable",
      [](const py::dict& settings, const host::ProgramOptions& session) {
        host::OptionMap map;
        for (const auto& [name, value] : settings) map.emplace(name.cast<std::string>(), toOptionValue(value));
        return host::requireAvailable(map, session);
      },
      py::arg("settings"), py::arg("session"), "The hints among valid settings; E0702 for those not available.");
}

}  // namespace abele::bind
