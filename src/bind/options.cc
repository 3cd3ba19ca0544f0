// The values that Python's Options shows. Expert settings are Python's own dict, which may hold anything until a model
// is compiled. Options::Values holds all other values, and the table of options checks them.
#include <optional>

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include "bind/bind.h"
#include "bind/gil.h"
#include "bind/notes.h"
#include "bind/option_values.h"
#include "calls/devices.h"
#include "calls/policy.h"
#include "options/input_shares.h"
#include "options/notes.h"
#include "options/run_time.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using options::OptionError;
using options::OptionMap;
using options::OptionRow;
using options::OptionValue;

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
      if (value.is_none() || !PyUnicode_Check(name.ptr())) throw Unfit();
      map.emplace(toText(name), toValue(value, Names::kText));
    } catch (const Unfit&) {
      refuseExpert(name, value);
    }
  return map;
}

/// The settings with valid values. The others are refused at compile.
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

/// All values in their C++ form. Throws E0702 for invalid expert settings.
Options::Values complete(const PythonOptions& self) {
  Options::Values values = self.values;
  values.popart = expertsOf(self.experts);
  values.strategy = strategyOf(self.strategy);
  return values;
}

// Notes --------------------------------------------------------------------------------------------------------------

PyObject* note_receiver = nullptr;  // receiver(level of Python's logging, text). Guarded by the GIL, never released.

void passToPython(log::Level level, const std::string& text) {
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
    if (takes_dtype && text && !text->starts_with("torch.")) throw Unfit();  // Python passes torch's own types
    return value;
  } catch (const Unfit&) {
    throw OptionError(ErrorCode::E0702,
                      {.what = cat(row.path, " does not take ", representation(given)),
                       .found = std::string(py::str(py::type::of(given).attr("__name__")))},
                      row.refused.value_or(options::Refused::kCondition));
  }
}

void call(PythonOptions& self, const std::string& path, const py::args& positional, const py::kwargs& named) {
  const OptionRow* row = options::findRow(path);
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
    throw OptionError(ErrorCode::E0702, {.what = cat("option ", key, " is ", representation(value))},
                      options::Refused::kCondition);
  }
}

py::list items(const PythonOptions& self, const std::string& group) {
  py::list result;
  for (const auto& entry : self.values.entries)
    if (entry.group == group) result.append(py::make_tuple(entry.key, fromValue(entry.value, Names::kDevices)));
  return result;
}

PythonOptions copyOf(const PythonOptions& self, const py::object& memory) {
  const py::object copy = py::module_::import("copy").attr("deepcopy");
  PythonOptions result{self.values, copy(self.experts, memory), copy(self.strategy, memory)};
  result.values.frozen = false;
  return result;
}

py::tuple stateOf(const PythonOptions& self) {
  py::list entries;
  for (const auto& entry : self.values.entries)
    entries.append(py::make_tuple(entry.group, entry.key, fromValue(entry.value, Names::kDevices)));
  return py::make_tuple(self.values.frozen, entries, self.experts, self.strategy);
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
  result.strategy = state[3];
  return result;
}

/// keepCompiled() of options/run_time.h. Leaves out invalid settings, which are refused at load.
std::vector<std::string> keepCompiled(PythonOptions& self, const PythonOptions& compiled) {
  const OptionMap before = fittingExperts(self.experts);
  self.values.popart = before;
  self.values.strategy = strategyOf(self.strategy);
  Options::Values then = compiled.values;
  then.popart = fittingExperts(compiled.experts);
  then.strategy = strategyOf(compiled.strategy);
  std::vector<std::string> changed = options::keepCompiled(self.values, then);
  storeExperts(self.experts, before, self.values.popart);
  self.strategy = py::module_::import("copy").attr("deepcopy")(compiled.strategy);
  return changed;
}

// Programs -----------------------------------------------------------------------------------------------------------

// torch's Python initialises a kind of device at its first use, and only then applies a seed that the program set
// before. Our C++ code may be the first to use the device, so this initialises it.
void setUpDevices(const std::string& names) {
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  if (!type || names.find(c10::DeviceTypeName(*type, /*lower_case=*/true)) == std::string::npos) return;
  if (at::accelerator::deviceCount() > 0) torch::utils::device_lazy_init(*type);
}

compile::ProgramOptions programOptions(const PythonOptions& self, bool training, const calls::Policy& policy) {
  const PythonNotes notes;
  compile::ProgramOptions options = calls::programOptions(complete(self), training, policy);
  setUpDevices(options.device);
  return options;
}

/// Text of all options, for files that C++ reads too.
std::string textOfSaved(const PythonOptions& self) { return options::textOfSaved(complete(self)); }

/// savedOptions() of options/run_time.h, and the Python text that makes its strategy.
py::tuple savedValues(const std::string& text) {
  PythonOptions result;
  result.values = options::savedOptions(text);
  storeExperts(result.experts, {}, result.values.popart);
  return py::make_tuple(result, fromText(options::textOf(result.values.strategy)));
}

/// (path, name, [(name, type, has a default, default, takes the rest)], returns itself, documentation) of each setter.
py::list setters(const std::string& group) {
  py::list result;
  for (const OptionRow& row : options::optionRows()) {
    if (row.group != group) continue;
    py::list parameters;
    for (const options::OptionParameter& each : row.parameters)
      parameters.append(py::make_tuple(each.name, each.type, each.has_default,
                                       fromValue(each.default_value, Names::kText), each.spread));
    const std::string name = row.path.substr(row.path.find('.') + 1);
    const char* const returns = row.returns_self ? "Returns: self, so that calls chain." : "Returns None.";
    const std::string documentation = cat(row.description, "\n", returns, "\nSource: ", row.spec, ".");
    result.append(py::make_tuple(row.path, name, parameters, row.returns_self, documentation));
  }
  return result;
}

/// (name, documentation, [(member, value)]) of each enumeration.
py::list enumerations() {
  py::list result;
  for (const options::OptionEnum& each : options::optionEnums()) {
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

PythonNotes::PythonNotes() : listener_(passToPython) {}

void registerOptions(py::module_& module) {
  py::class_<PythonOptions>(module, "OptionValues")
      .def(py::init([] {
        PythonOptions result;
        storeExperts(result.experts, {}, options::expertDefaults());
        return result;
      }))
      .def_readonly("experts", &PythonOptions::experts)
      .def_readwrite("strategy", &PythonOptions::strategy)
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
            const options::InputShares shares = options::inputSharesOf(self.values);
            return std::tuple(shares.replicas, shares.count, shares.own);
          },
          "(replicas of this process, different parts of the inputs, which of them it takes).")
      .def("programOptions", programOptions, py::arg("training"), py::arg("policy"))
      .def("textOfSaved", textOfSaved)
      .def(
          "requireTarget", [](const PythonOptions& self) { calls::requireTarget(self.values); },
          "Throws E0402 where useIpuId names no group of devices.")
      .def(
          "requireDevices",
          [](const PythonOptions& self, const calls::Policy& policy, const std::vector<int>& stage_devices) {
            calls::requireDevices(policy, self.values, stage_devices);
          },
          py::arg("policy"), py::arg("stage_devices"), py::call_guard<PythonNotes>(),
          "Throws E0402 for devices that cannot be reserved.")
      .def("keepCompiled", keepCompiled, py::arg("compiled"),
           "Gives what is part of a program its values of then. Returns the names of what had others.")
      .def(
          "takePlaceHere",
          [](PythonOptions& self, int64_t process, int64_t processes) {
            options::takePlaceHere(self.values, process, processes);
          },
          py::arg("process"), py::arg("processes"))
      .def("__deepcopy__", copyOf)
      .def("state", stateOf, "For optionValuesOf: plain containers.");
  module.def("optionValuesOf", ofState, py::arg("state"));
  module.def("savedOptionValues", savedValues, py::arg("text"), "(values, Python that makes the strategy).");
  module.def("optionSetters", setters, py::arg("group"));
  module.def("optionEnums", enumerations);
  module.def("optionKeys", [] {
    py::dict types;
    for (const options::OptionKey& key : options::optionKeys()) types[py::str(key.key)] = key.type;
    return types;
  });
  module.def(
      "validateExpert", [](const py::dict& settings) { options::validateExpert(expertsOf(settings)); },
      py::call_guard<PythonNotes>());
  module.def(
      "sampleBlockOf",
      [](int64_t count, int64_t processes, int64_t process, int64_t step, bool drop_last) {
        const options::SampleBlock block = options::sampleBlockOf(count, processes, process, step, drop_last);
        return std::tuple(block.begin, block.length, block.left_out);
      },
      py::arg("count"), py::arg("processes"), py::arg("process"), py::arg("step"), py::arg("drop_last"));
  module.def("setNoteReceiver", [](py::object receiver) { Py_XSETREF(note_receiver, receiver.release().ptr()); });
}

}  // namespace abele::bind
