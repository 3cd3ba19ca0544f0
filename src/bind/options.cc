// The values that Python's Options shows. Expert settings are Python's own dict, which may hold anything until a model
// is compiled; all else is in Options::Values, and the table of options checks it.
#include "bind/bind.h"
#include "bind/gil.h"
#include "bind/ipu_config.h"
#include "bind/notes.h"
#include "model/devices.h"
#include "model/policy.h"
#include "options/expression.h"
#include "options/input_shares.h"
#include "options/notes.h"
#include "options/objects.h"
#include "options/run_time.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using host::OptionError;
using host::OptionList;
using host::OptionMap;
using host::OptionRow;
using host::OptionValue;

struct PythonOptions {
  Options::Values values{false};
  py::dict experts;
};

constexpr const char* kLocation = "TensorLocationSettings";

/// An object that is no value of an option.
struct Unfit {};

/// Which names the maps have. kDevices: Python's are numbers.
enum class Names { kText, kDevices };

/// Text may hold bytes that are none, as Python's names of files do.
std::string toText(const py::handle& text) {
  const auto bytes =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!bytes) {
    PyErr_Clear();
    throw Unfit();
  }
  return bytes.cast<std::string>();
}

py::object fromText(const std::string& text, const char* errors = "surrogateescape") {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), errors));
}

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

/// A member of one of the table's enumerations; other enumerations are numbers.
OptionValue toMember(const py::handle& given) {
  const std::string type = py::str(py::type::of(given).attr("__name__")), name = py::str(given.attr("name"));
  for (const host::OptionEnum& each : host::optionEnums())
    if (each.name == type)
      for (const auto& [known, number] : each.members)
        if (known == name) return OptionValue(host::EnumMember{type, name, number});
  return toNumber(given);
}

OptionValue toValue(const py::handle& given, Names names);

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
      OptionsAccess::values(settings)[entry.key] = host::integer<int64_t>(entry.value).value_or(0);
  return host::toValue(settings);
}

/// Throws Unfit.
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
  if (const py::object values = py::getattr(given, "_values", py::none()); py::isinstance<PythonOptions>(values))
    return toLocation(values.cast<const PythonOptions&>());
  throw Unfit();
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
      const int64_t device = names == Names::kDevices ? host::deviceOf(name) : -1;
      result[device < 0 ? fromText(name) : py::int_(device)] = std::visit(*this, value.value);
    }
    return result;
  }
  py::object operator()(const host::EnumMember& value) const { return py::int_(value.value); }
  py::object operator()(const std::shared_ptr<const host::OptionObject>& object) const {
    const auto* settings = std::get_if<TensorLocationSettings>(object.get());
    ABELE_CHECK(settings != nullptr, "an object of another kind");
    py::dict result;
    for (const auto& [name, value] : settings->values()) result[fromText(name)] = value;
    return result;
  }
};

py::object fromValue(const OptionValue& value, Names names) { return std::visit(ToPython{names}, value.value); }

/// Text with surrogates that stand for no byte keeps them as they are.
std::string textOrFail(const py::handle& text) {
  const auto bytes = py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
  if (!bytes) throw py::error_already_set();
  return bytes.cast<std::string>();
}

std::string representation(const py::handle& object) { return textOrFail(py::repr(object)); }

// Expert settings ----------------------------------------------------------------------------------------------------

[[noreturn]] void refuseExpert(const py::handle& name, const py::handle& value) {
  const bool number = PyLong_Check(value.ptr()), map = PyDict_Check(value.ptr());
  const bool list = PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()) || PyAnySet_Check(value.ptr());
  const std::string known = number ? "an unsigned number of 64 bits"
                            : map  ? "a dict with strings as names, and strings, numbers or bools as values"
                            : list ? "a container of strings or integers"
                                   : "";
  const std::string type = py::str(py::type::of(value).attr("__name__"));
  const std::string key = representation(py::str(name));
  throwUser(ErrorCode::E0702, {.what = known.empty() ? cat("option ", key, " has the unsupported type ", type)
                                                     : cat("option ", key, " is ", representation(value)),
                               .expected = known.empty() ? "bool, int, float, str, set, list, tuple or dict" : known,
                               .remedy = "remove the setting or correct it"});
}

OptionMap expertsOf(const py::dict& settings) {
  OptionMap map;
  for (const auto& [name, value] : settings) try {
      if (value.is_none() || !PyUnicode_Check(name.ptr())) refuseExpert(name, value);
      map.emplace(toText(name), toValue(value, Names::kText));
    } catch (const Unfit&) {
      refuseExpert(name, value);
    }
  return map;
}

/// Those that are values; the others wait for the check at compile.
OptionMap fittingExperts(const py::dict& settings) {
  OptionMap map;
  for (const auto& [name, value] : settings) try {
      if (PyUnicode_Check(name.ptr())) map.emplace(toText(name), toValue(value, Names::kText));
    } catch (const Unfit&) {
      continue;
    }
  return map;
}

void storeExperts(py::dict& settings, const OptionMap& before, const OptionMap& after) {
  for (const auto& [name, value] : before)
    if (!after.contains(name)) settings.attr("pop")(fromText(name));
  for (const auto& [name, value] : after)
    if (const auto it = before.find(name); it == before.end() || !(it->second == value))
      settings[fromText(name)] = fromValue(value, Names::kText);
}

// Notes --------------------------------------------------------------------------------------------------------------

PyObject* note_receiver = nullptr;  // receiver(level of Python's logging, text). Guarded by the GIL, never released.

void toPython(log::Level level, const std::string& text) {
  const WithGil gil;
  const int number = level <= log::Level::kDebug ? 10 : level == log::Level::kInfo ? 20 : 30;
  const auto receiver = py::reinterpret_borrow<py::object>(note_receiver);
  if (receiver) receiver(number, "%s", fromText(text, "replace"));
}

// Values -------------------------------------------------------------------------------------------------------------

OptionValue argumentOf(const OptionRow& row, const py::handle& given) {
  try {
    OptionValue value = toValue(given, Names::kText);
    const bool takes_dtype = !row.parameters.empty() && row.parameters[0].type == "FloatType";
    const std::string* text = value.as<std::string>();
    if (takes_dtype && text && !text->starts_with("torch.")) throw Unfit();  // Python has torch's own types
    return value;
  } catch (const Unfit&) {
    throw OptionError(ErrorCode::E0702,
                      {.what = cat(row.path, " does not take ", representation(given)),
                       .found = std::string(py::str(py::type::of(given).attr("__name__")))},
                      row.error.empty() ? "AssertionError" : row.error);
  }
}

void call(PythonOptions& self, const std::string& path, const py::args& positional, const py::kwargs& named) {
  const OptionRow* row = host::findRow(path);
  ABELE_CHECK(row != nullptr, path);
  self.values.requireNotFrozen(path);
  std::vector<OptionValue> arguments;
  std::vector<std::pair<std::string, OptionValue>> by_name;
  for (const py::handle each : positional) arguments.push_back(argumentOf(*row, each));
  for (const auto& [name, value] : named) by_name.emplace_back(name.cast<std::string>(), argumentOf(*row, value));
  const PythonNotes notes;
  const OptionMap before = fittingExperts(self.experts);
  self.values.popart = before;
  self.values.call(path, std::move(arguments), std::move(by_name));
  storeExperts(self.experts, before, self.values.popart);
}

void assign(PythonOptions& self, const std::string& group, const std::string& key, const py::handle& value) {
  try {
    self.values.set(group, key, self.values.typed(key, toValue(value, Names::kDevices)));
  } catch (const Unfit&) {
    throw OptionError(ErrorCode::E0702, {.what = cat("option ", key, " is ", representation(value))}, "AssertionError");
  }
}

py::list items(const PythonOptions& self, const std::string& group) {
  py::list result;
  for (const auto& entry : self.values.entries) {
    const auto& keys = host::optionKeys();
    const bool hidden = std::any_of(keys.begin(), keys.end(),
                                    [&](const host::OptionKey& key) { return key.key == entry.key && !key.in_python; });
    if (entry.group == group && !hidden)
      result.append(py::make_tuple(entry.key, fromValue(entry.value, Names::kDevices)));
  }
  return result;
}

PythonOptions copyOf(const PythonOptions& self, const py::object& memory) {
  const py::object copy = py::module_::import("copy").attr("deepcopy");
  PythonOptions result{self.values, copy(self.experts, memory)};
  result.values.frozen = false;
  return result;
}

py::tuple stateOf(const PythonOptions& self) {
  py::list entries;
  for (const auto& entry : self.values.entries)
    entries.append(py::make_tuple(entry.group, entry.key, fromValue(entry.value, Names::kDevices)));
  return py::make_tuple(self.values.frozen, entries, self.experts);
}

PythonOptions ofState(const py::tuple& state) {
  PythonOptions result;
  result.values.frozen = state[0].cast<bool>();
  std::vector<Options::Values::Entry> entries;
  for (const py::handle each : state[1].cast<py::list>()) {
    const auto [group, key, value] = each.cast<std::tuple<std::string, std::string, py::object>>();
    try {
      entries.push_back({group, key, result.values.typed(key, toValue(value, Names::kDevices))});
    } catch (const Unfit&) {
      throwUser(ErrorCode::E0702, {.what = cat("option ", key, " is ", representation(value))});
    }
  }
  result.values.entries = std::move(entries);
  result.experts = state[2].cast<py::dict>();
  return result;
}

/// keepCompiled() of options/run_time.h, of what is no strategy. Settings that are no values are refused at load.
std::vector<std::string> keepCompiled(PythonOptions& self, const PythonOptions& compiled) {
  const OptionMap before = fittingExperts(self.experts);
  self.values.popart = before;
  Options::Values then = compiled.values;
  then.popart = fittingExperts(compiled.experts);
  std::vector<std::string> changed = host::keepCompiled(self.values, then);
  storeExperts(self.experts, before, self.values.popart);
  return changed;
}

// Texts --------------------------------------------------------------------------------------------------------------

/// Python's options as what a text is applied to: subclasses have setters of their own, and objects are Python's.
class PythonTarget : public host::OptionTarget {
 public:
  /// target: call(path, arguments, named), assign(group, key, value), read(group, key), and the classes by name.
  explicit PythonTarget(py::object target) : target_(std::move(target)), classes_(target_.attr("classes")) {}

  OptionValue read(const std::string& group, const std::string& key) override {
    try {
      return toValue(target_.attr("read")(fromText(group), fromText(key)), Names::kDevices);
    } catch (const Unfit&) {
      throw OptionError(ErrorCode::E0701, {.what = cat(key, " is no value of an option")}, "TypeError");
    }
  }

  void call(const std::string& path, OptionList arguments,
            std::vector<std::pair<std::string, OptionValue>> named) override {
    py::dict by_name;
    for (const auto& [name, value] : named) by_name[fromText(name)] = toPython(value);
    py::list list;
    for (const OptionValue& each : arguments) list.append(toPython(each));
    target_.attr("call")(fromText(path), list, by_name);
  }

  void assign(const std::string& group, const std::string& key, OptionValue value) override {
    target_.attr("assign")(fromText(group), fromText(key), toPython(value));
  }

 private:
  py::object toPython(const OptionValue& value) const {
    const bool has_class =
        value.as<host::EnumMember>() || value.as<std::shared_ptr<const host::OptionObject>>() || value.as<OptionList>();
    if (!has_class) return fromValue(value, Names::kText);
    if (const OptionList* list = value.as<OptionList>()) {
      py::list result;
      for (const OptionValue& each : *list) result.append(toPython(each));
      return result;
    }
    if (const auto* member = value.as<host::EnumMember>())
      return classes_.contains(member->type) ? classes_[fromText(member->type)].attr(member->name.c_str())
                                             : fromText(cat("torch.", member->name));
    const auto& object = **value.as<std::shared_ptr<const host::OptionObject>>();
    return build(host::parseExpression(std::visit([](const auto& held) { return host::textOf(held); }, object)));
  }

  /// The text of an object is the Python that makes it.
  py::object build(const host::Expression& expression) const {
    using Kind = host::Expression::Kind;
    if (expression.kind == Kind::kName) return classes_[fromText(expression.text)];
    if (expression.kind == Kind::kAttribute) return build(expression.parts[0]).attr(expression.text.c_str());
    if (expression.kind != Kind::kCall) return fromValue(expression.constant, Names::kText);
    py::list arguments;
    for (size_t i = 1; i < expression.parts.size(); ++i) arguments.append(build(expression.parts[i]));
    return build(expression.parts[0])(*arguments);
  }

  py::object target_;
  py::dict classes_;
};

void applyConfig(const py::str& text, const py::str& file_name, const py::object& target) {
  PythonTarget python(target);
  host::applyConfigText(python, textOrFail(text), textOrFail(file_name));
}

void applyJson(const py::str& text, const py::object& target) {
  PythonTarget python(target);
  host::applyJson(python, textOrFail(text));
}

// Programs -----------------------------------------------------------------------------------------------------------

/// (type, arguments, [(method, argument)]), as a strategy describes itself. Arguments may be so described.
OptionValue toObject(const py::handle& described) {
  const auto [type, given, calls] = described.cast<std::tuple<std::string, py::list, py::list>>();
  std::vector<OptionValue> arguments;
  for (const py::handle each : given)
    arguments.push_back(py::isinstance<py::tuple>(each) ? toObject(each) : toValue(each, Names::kText));
  host::OptionObject object = host::makeObject(type, arguments);
  for (const py::handle each : calls) {
    const auto [name, argument] = each.cast<std::pair<std::string, py::object>>();
    host::callMethod(object, name, {toValue(argument, Names::kText)}, {});
  }
  return OptionValue(std::make_shared<const host::OptionObject>(std::move(object)));
}

host::ProgramOptions programOptions(const PythonOptions& self, const py::object& strategy, bool training,
                                    const host::Policy& policy) {
  const PythonNotes notes;
  Options::Values values = self.values;
  values.popart = expertsOf(self.experts);
  values.strategy = *toObject(strategy).object<ExecutionStrategy>();
  return host::programOptions(std::move(values), training, policy);
}

/// Of all options, for files that C++ reads too.
std::string textOfSaved(const PythonOptions& self, const py::object& strategy) {
  Options::Values values = self.values;
  values.popart = expertsOf(self.experts);
  values.strategy = *toObject(strategy).object<ExecutionStrategy>();
  return host::textOfSaved(std::move(values));
}

/// (path, name, [(name, type, has a default, default, takes the rest)], returns itself, documentation) of each setter.
py::list setters(const std::string& group) {
  py::list result;
  for (const OptionRow& row : host::optionRows()) {
    if (row.group != group || !row.in_python) continue;
    py::list parameters;
    for (const host::OptionParameter& each : row.parameters)
      parameters.append(py::make_tuple(each.name, each.type, each.has_default,
                                       fromValue(each.default_value, Names::kText), each.spread));
    const std::string name = row.path.substr(row.path.find('.') + 1);
    result.append(py::make_tuple(row.path, name, parameters, row.returns_self, row.documentation));
  }
  return result;
}

/// (name, documentation, [(member, value)]) of each enumeration.
py::list enumerations() {
  py::list result;
  for (const host::OptionEnum& each : host::optionEnums()) {
    if (!each.in_python) continue;
    py::list members;
    for (size_t i = 0; i < each.members.size(); ++i) {
      const auto& [name, number] = each.members[i];
      members.append(py::make_tuple(name, each.texts.empty() ? py::object(py::int_(number)) : py::str(each.texts[i])));
    }
    result.append(py::make_tuple(each.name, each.meaning, members));
  }
  return result;
}

}  // namespace

PythonNotes::PythonNotes() : listener_(toPython) {}

void registerOptions(py::module_& module) {
  py::class_<PythonOptions>(module, "OptionValues")
      .def(py::init([] {
        PythonOptions result;
        storeExperts(result.experts, {}, host::expertDefaults());
        return result;
      }))
      .def_readonly("experts", &PythonOptions::experts)
      .def_property(
          "frozen", [](const PythonOptions& self) { return self.values.frozen; },
          [](PythonOptions& self, bool frozen) { self.values.frozen = frozen; })
      .def("call", call, "One call of a setter: its path and arguments.")
      .def(
          "get",
          [](const PythonOptions& self, const std::string& group, const std::string& key) {
            const OptionValue* found = self.values.find(group, key);
            return found == nullptr ? py::object(py::none()) : fromValue(*found, Names::kDevices);
          },
          py::arg("group"), py::arg("key"), "None where the option has no value.")
      .def("assign", assign, py::arg("group"), py::arg("key"), py::arg("value"))
      .def(
          "erase", [](PythonOptions& self, const std::string& key) { self.values.erase(key); }, py::arg("key"))
      .def("items", items, py::arg("group"), "(key, value) of all options of a group, in the order of their setting.")
      .def(
          "inputShares",
          [](const PythonOptions& self) {
            const host::InputShares shares = host::inputSharesOf(self.values);
            return std::tuple(shares.replicas, shares.count, shares.own);
          },
          "(replicas of this process, different parts of the inputs, which of them it takes).")
      .def("programOptions", programOptions, py::arg("strategy"), py::arg("training"), py::arg("policy"))
      .def("textOfSaved", textOfSaved, py::arg("strategy"))
      .def(
          "requireTarget", [](const PythonOptions& self) { host::requireTarget(self.values); },
          "Throws E0402 where useIpuId names no group of devices.")
      .def(
          "requireDevices",
          [](const PythonOptions& self, const host::Policy& policy, const std::vector<int>& stage_devices) {
            const PythonNotes notes;
            host::requireDevices(policy, self.values, stage_devices);
          },
          py::arg("policy"), py::arg("stage_devices"), "Throws E0402 for devices that cannot be reserved.")
      .def("keepCompiled", keepCompiled, py::arg("compiled"),
           "Gives what is part of a program its values of then. Returns the names of what had others.")
      .def("__deepcopy__", copyOf)
      .def("state", stateOf, "For optionValuesOf: plain containers.");
  module.def("optionValuesOf", ofState, py::arg("state"));
  module.def("optionSetters", setters, py::arg("group"));
  module.def("optionEnums", enumerations);
  module.def("optionKeys", [] {
    py::dict types;
    for (const host::OptionKey& key : host::optionKeys())
      if (key.in_python) types[py::str(key.key)] = key.type;
    return types;
  });
  module.def("validateExpert", [](const py::dict& settings) {
    const PythonNotes notes;
    host::validateExpert(expertsOf(settings));
  });
  module.def(
      "sampleBlockOf",
      [](int64_t count, int64_t processes, int64_t process, int64_t step, bool drop_last) {
        const host::SampleBlock block = host::sampleBlockOf(count, processes, process, step, drop_last);
        return std::tuple(block.begin, block.length, block.left_out);
      },
      py::arg("count"), py::arg("processes"), py::arg("process"), py::arg("step"), py::arg("drop_last"));
  registerIpuConfig(module);
  module.def("applyConfig", applyConfig, py::arg("text"), py::arg("file_name"), py::arg("target"));
  module.def("applyJson", applyJson, py::arg("text"), py::arg("target"));
  module.def("setNoteReceiver", [](py::object receiver) { Py_XSETREF(note_receiver, receiver.release().ptr()); });
}

}  // namespace abele::bind
