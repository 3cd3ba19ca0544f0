#include "bind/option_values.h"

#include <memory>
#include <variant>

namespace py = pybind11;

namespace abele::bind {

using options::OptionList;
using options::OptionMap;
using options::OptionValue;

namespace {

constexpr const char* kLocation = "TensorLocationSettings";

OptionValue toNumber(const py::handle& given) {
  int too_large = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(given.ptr(), &too_large);
  if (too_large == 0) return OptionValue(number);
  const uint64_t large = too_large > 0 ? PyLong_AsUnsignedLongLong(given.ptr()) : 0;
  if (too_large < 0 || PyErr_Occurred()) {
    PyErr_Clear();
    throw Unfit();
  }
  return OptionValue(large);
}

/// Makes a member of the table's enumerations. Members of other enumerations become numbers.
OptionValue toMember(const py::handle& given) {
  const std::string type = py::str(py::type::of(given).attr("__name__")), name = py::str(given.attr("name"));
  for (const options::OptionEnum& each : options::optionEnums())
    if (each.name == type)
      for (const auto& [known, number] : each.members)
        if (known == name) return OptionValue(options::EnumMember{type, name, number});
  return toNumber(given);
}

OptionMap toMap(const py::handle& given, Names names) {
  OptionMap map;
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(given)) {
    const bool is_device = names == Names::kDevices && PyLong_Check(name.ptr());
    if (!is_device && !PyUnicode_Check(name.ptr())) throw Unfit();
    map.insert_or_assign(is_device ? cat("IPU", name.cast<int64_t>()) : toText(name), toValue(value, names));
  }
  return map;
}

OptionValue toLocation(const PythonOptions& given) {
  TensorLocationSettings settings;
  for (const auto& entry : given.values.entries)
    if (entry.group == kLocation)
      OptionsAccess::values(settings)[entry.key] = options::integer<int64_t>(entry.value).value_or(0);
  return options::toValue(settings);
}

struct ToPython {
  Names names;
  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(bool value) const { return py::bool_(value); }
  py::object operator()(int64_t value) const { return py::int_(value); }
  py::object operator()(uint64_t value) const { return py::int_(value); }
  py::object operator()(double value) const { return py::float_(value); }
  py::object operator()(const std::string& value) const { return fromText(value); }
  py::object operator()(const OptionList& list) const {
    py::list result;
    for (const OptionValue& each : list) result.append(std::visit(*this, each.value));
    return result;
  }
  py::object operator()(const OptionMap& map) const {
    py::dict result;
    for (const auto& [name, value] : map) {
      const int64_t device = names == Names::kDevices ? options::deviceOf(name) : -1;
      result[device < 0 ? fromText(name) : py::int_(device)] = std::visit(*this, value.value);
    }
    return result;
  }
  py::object operator()(const options::EnumMember& value) const { return py::int_(value.value); }
  py::object operator()(const std::shared_ptr<const options::OptionObject>& object) const {
    const auto* settings = std::get_if<TensorLocationSettings>(object.get());
    ABELE_CHECK(settings != nullptr, "an object of another kind");
    py::dict result;
    for (const auto& [name, value] : settings->values()) result[fromText(name)] = value;
    return result;
  }
};

}  // namespace

std::string toText(const py::handle& text) {
  const auto bytes =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!bytes) {
    PyErr_Clear();
    throw Unfit();
  }
  return bytes.cast<std::string>();
}

py::object fromText(const std::string& text, const char* errors) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), errors));
}

OptionValue toValue(const py::handle& given, Names names) {
  if (given.is_none()) return OptionValue();
  if (PyBool_Check(given.ptr())) return OptionValue(given.cast<bool>());
  if (PyLong_CheckExact(given.ptr())) return toNumber(given);
  if (PyLong_Check(given.ptr())) return py::hasattr(given, "name") ? toMember(given) : toNumber(given);
  if (PyFloat_Check(given.ptr())) return OptionValue(given.cast<double>());
  if (PyUnicode_Check(given.ptr())) return OptionValue(toText(given));
  if (PyDict_Check(given.ptr())) return OptionValue(toMap(given, names));
  if (PyList_Check(given.ptr()) || PyTuple_Check(given.ptr()) || PyAnySet_Check(given.ptr())) {
    OptionList list;
    for (const py::handle each : given) list.push_back(toValue(each, names));
    return OptionValue(std::move(list));
  }
  if (std::string(Py_TYPE(given.ptr())->tp_name) == "torch.dtype") return OptionValue(toText(py::str(given)));
  if (py::hasattr(given, "__fspath__")) return toValue(given.attr("__fspath__")(), names);
  if (py::isinstance<Stage>(given))
    return OptionValue(std::make_shared<const options::OptionObject>(given.cast<Stage>()));
  if (const py::object values = py::getattr(given, "_native", py::none()); py::isinstance<PythonOptions>(values))
    return toLocation(values.cast<const PythonOptions&>());
  throw Unfit();
}

py::object fromValue(const OptionValue& value, Names names) { return std::visit(ToPython{names}, value.value); }

std::string textOrFail(const py::handle& text) {
  const auto bytes = py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
  if (!bytes) throw py::error_already_set();
  return bytes.cast<std::string>();
}

std::string representation(const py::handle& object) { return textOrFail(py::repr(object)); }

}  // namespace abele::bind
