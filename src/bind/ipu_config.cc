#include <string>

#include "bind/bind.h"
#include "bind/notes.h"
#include "options/ipu_config.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using options::IpuSettings;

constexpr int kDeepest = 16;  // the limit for files too

/// Converts a value. One that no setting can have becomes bytes, which the check refuses.
IpuSettings fromPython(const py::handle& value, int depth = 0) {
  const IpuSettings other = IpuSettings::binary({});
  if (value.is_none()) return nullptr;
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) return number;
    const uint64_t large = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() == nullptr) return large;
    PyErr_Clear();
    return other;
  }
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::isinstance(value, py::module_::import("numbers").attr("Real")))
    return py::float_(py::reinterpret_borrow<py::object>(value)).cast<double>();
  if (depth == kDeepest) return other;
  if (py::isinstance<py::list>(value)) {
    IpuSettings list = IpuSettings::array();
    for (const py::handle item : value) list.push_back(fromPython(item, depth + 1));
    return list;
  }
  if (!py::isinstance<py::dict>(value)) return other;
  IpuSettings map = IpuSettings::object();
  for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) {
    if (!py::isinstance<py::str>(key)) return other;
    map[key.cast<std::string>()] = fromPython(item, depth + 1);
  }
  return map;
}

/// The settings of a config. Its program may have changed lists in it since they were set.
IpuSettings settingsOf(const py::dict& config) {
  IpuSettings all = IpuSettings::object();
  for (const std::string& name : options::ipuSettingNames())
    all[name] = options::checkedIpuSetting(name, fromPython(config[name.c_str()]));
  return all;
}

py::object toPython(const IpuSettings& value) {
  if (value.is_boolean()) return py::bool_(value.get<bool>());
  if (value.is_number_unsigned()) return py::int_(value.get<uint64_t>());
  if (value.is_number_integer()) return py::int_(value.get<int64_t>());
  if (value.is_number()) return py::float_(value.get<double>());
  if (value.is_string()) return py::str(value.get<std::string>());
  if (value.is_array()) {
    py::list list;
    for (const IpuSettings& item : value) list.append(toPython(item));
    return list;
  }
  if (!value.is_object()) return py::none();
  py::dict map;
  for (const auto& [key, item] : value.items()) map[py::str(key)] = toPython(item);
  return map;
}

}  // namespace

void registerIpuConfig(py::module_& module) {
  module.def("ipuSettingNames", options::ipuSettingNames);
  module.def("ipuSettingOf", options::ipuSettingOf, py::arg("name"), py::arg("for_inference"));
  module.def(
      "checkedIpuSetting",
      [](const std::string& name, const py::object& value) {
        return toPython(options::checkedIpuSetting(name, fromPython(value)));
      },
      py::arg("name"), py::arg("value"));
  module.def(
      "parseIpuSetting",
      [](const std::string& name, const std::string& text) { return toPython(options::parseIpuSetting(name, text)); },
      py::arg("name"), py::arg("text"));
  module.def(
      "completeIpuSettings",
      [](const py::dict& given) { return toPython(options::completeIpuSettings(fromPython(given))); }, py::arg("given"),
      py::call_guard<PythonNotes>());
  module.def(
      "validateIpuSettings",
      [](const py::dict& settings) {
        IpuSettings all = settingsOf(settings);
        options::validateIpuSettings(all);
        return toPython(all);
      },
      py::arg("settings"), py::call_guard<PythonNotes>(), "The same settings, with the factors of serialization.");
  module.def(
      "layersPerIpu",
      [](const py::dict& settings, bool for_inference, std::optional<int64_t> layers) {
        return options::layersPerIpu(settingsOf(settings), for_inference, layers);
      },
      py::arg("settings"), py::arg("for_inference"), py::arg("layers"));
  module.def(
      "optionsOfIpuSettings",
      [](const py::dict& settings, bool for_inference) {
        return options::optionsOfIpuSettings(settingsOf(settings), for_inference).toJson();
      },
      py::arg("settings"), py::arg("for_inference"), "JSON of options.");
}

}  // namespace abele::bind
