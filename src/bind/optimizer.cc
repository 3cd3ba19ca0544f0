// Optimizers of Python: how a Model reads and writes their attributes and their state. model/ interprets them
// (optimizer_attributes.h, optimizer_state.h).
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "model/module_source.h"
#include "modules/module.h"
#include "optimizer/optimizer.h"
#include "optimizer/optimizer_attributes.h"
#include "optimizer/optimizer_source.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using modules::NamedTensor;
using optimizer::OptimizerTensors;
using ParameterNames = std::vector<std::vector<std::string>>;

bool isNumber(const py::object& value) {
  if (!value || PyBool_Check(value.ptr())) return false;
  if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr()) || THPVariable_Check(value.ptr())) return true;
  return py::isinstance(value, py::module_::import("numbers").attr("Real"));  // such as numpy's numbers
}

/// Returns nothing for other objects, and for numbers that are not a double: 10**400, a tensor of two elements.
std::optional<double> numberIn(const py::object& value) {
  if (!isNumber(value)) return std::nullopt;
  const double number = PyFloat_AsDouble(value.ptr());
  if (number != -1 || !PyErr_Occurred()) return number;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();  // such as Ctrl-C
  PyErr_Clear();
  return std::nullopt;
}

bool isTrueValue(const py::object& value) {
  const int is_true = value ? PyObject_IsTrue(value.ptr()) : 0;
  if (is_true < 0) throw py::error_already_set();
  return is_true != 0;
}

/// The attributes of an optimizer. They do not keep it alive; its executor does. Methods take the GIL.
class PythonAttributes : public optimizer::OptimizerAttributes {
 public:
  PythonAttributes(const py::object& optimizer, OptimizerKind kind, bool is_ours)
      : optimizer_(kept(py::weakref(optimizer))), kind_(kind), is_ours_(is_ours) {}

  /// Requires: the GIL.
  py::object object() const {
    py::object optimizer = (*optimizer_)();
    ABELE_CHECK(!optimizer.is_none(), "the optimizer of a model is gone");
    return optimizer;
  }
  py::list groups() const { return object().attr("param_groups"); }

  OptimizerKind kind() const override { return kind_; }
  bool isOurs() const override { return is_ours_; }
  bool isConstant(const std::string& name) const override { return asked("isConstant", name); }
  bool isMarkedConstant(const std::string& name) const override { return is_ours_ && asked("_isMarkedConstant", name); }
  int numGroups() const override {
    const WithGil gil;
    return static_cast<int>(groups().size());
  }
  std::vector<at::Tensor> parameters(int group) const override {
    const WithGil gil;
    return py::object(groups()[static_cast<size_t>(group)]["params"]).cast<std::vector<at::Tensor>>();
  }
  bool has(int place, const std::string& name) const override {
    const WithGil gil;
    return static_cast<bool>(find(place, name));
  }
  std::optional<double> number(int place, const std::string& name) const override {
    const WithGil gil;
    return numberIn(find(place, name));
  }
  std::optional<std::pair<double, double>> pair(int place, const std::string& name) const override {
    const WithGil gil;
    const py::object value = find(place, name);
    if (!value || !PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != 2) return std::nullopt;
    const auto first = numberIn(value[py::int_(0)]), second = numberIn(value[py::int_(1)]);
    return first && second ? std::optional(std::pair(*first, *second)) : std::nullopt;
  }
  std::optional<DType> type(int place, const std::string& name) const override {
    const WithGil gil;
    const py::object value = find(place, name);
    if (!value) return std::nullopt;
    if (THPVariable_Check(value.ptr())) return static_cast<DType>(THPVariable_Unpack(value.ptr()).scalar_type());
    if (!THPDtype_Check(value.ptr())) return std::nullopt;
    return static_cast<DType>(reinterpret_cast<THPDtype*>(value.ptr())->scalar_type);
  }
  bool isTrue(int place, const std::string& name) const override {
    const WithGil gil;
    return isTrueValue(find(place, name));
  }
  std::string text(int place, const std::string& name) const override {
    const WithGil gil;
    const py::object value = find(place, name);
    if (!value) return "None";
    if (PyUnicode_Check(value.ptr())) return py::repr(value).cast<std::string>();
    const bool is_integer = PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr());
    if (!is_integer) return py::str(value).cast<std::string>();
    const std::optional<double> number = numberIn(value);  // 1 and 1.0 are the same number
    return number ? py::str(py::float_(*number)).cast<std::string>() : "an integer beyond all doubles";
  }

 private:
  /// Returns null if the attribute is missing. Requires: the GIL.
  py::object find(int place, const std::string& name) const {
    const py::object optimizer = object();
    const py::str key(name);
    if (place == kWhole) {
      PyObject* found = nullptr;  // without an exception, because most optimizers lack most of these attributes
#if PY_VERSION_HEX >= 0x030D0000
      const bool has_failed = PyObject_GetOptionalAttr(optimizer.ptr(), key.ptr(), &found) < 0;
#else
      const bool has_failed = _PyObject_LookupAttr(optimizer.ptr(), key.ptr(), &found) < 0;
#endif
      if (has_failed) PyErr_Clear();
      return py::reinterpret_steal<py::object>(found);
    }
    if (place != kDefaults) {
      const py::dict group = py::list(optimizer.attr("param_groups"))[static_cast<size_t>(place)];
      if (group.contains(key)) return group[key];
    }
    const py::dict defaults = optimizer.attr("defaults");
    return defaults.contains(key) ? py::object(defaults[key]) : py::object();
  }
  bool asked(const char* question, const std::string& name) const {
    const WithGil gil;
    return isTrueValue(object().attr("variable_attrs").attr(question)(name));
  }

  const std::shared_ptr<py::object> optimizer_;  // a weak reference
  const OptimizerKind kind_;
  const bool is_ours_;
};

/// The dict optimizer.state of torch.optim, by parameter.
class TorchState : public optimizer::HostState {
 public:
  explicit TorchState(const PythonAttributes& optimizer) : optimizer_(optimizer) {}
  bool isOfTorch() const override { return true; }
  /// True after load_state_dict(), which replaces the dict.
  bool isNew() const override {
    const WithGil gil;
    const py::object state = all();
    return !(known_ && known_->is(state)) && isTrueValue(state);
  }
  bool isStale() const override { return is_stale_; }
  bool isThere() const override {
    const WithGil gil;
    return isTrueValue(all());
  }
  Taken read(const session::StoredTensors& current, const std::vector<NamedTensor>& tensors) override {
    const WithGil gil;
    Taken taken;
    const py::object all_states = all();
    visitParameters(tensors, [&](const py::handle& parameter, const std::string& name) {
      const py::object state = all_states.attr("get")(parameter, py::dict());
      std::optional<OptimizerTensors> given;
      if (isTrueValue(state)) given = tensorsOf(state);
      taken.updates =
          std::max(taken.updates, optimizer::takeFromTorch(optimizer_.kind(), given, name, current, taken.tensors));
    });
    return taken;
  }
  void write(const session::StoredTensors& state, const std::vector<NamedTensor>& tensors, int64_t updates) override {
    const WithGil gil;
    const py::object all_states = all();
    if (updates > 0)  // otherwise nothing has changed
      visitParameters(tensors, [&](const py::handle& parameter, const std::string& name) {
        const optimizer::TorchState values =  // the read waits for devices and other processes
            withoutGil([&] { return optimizer::inTorch(optimizer_.kind(), state, name, updates); });
        if (values.empty()) return;
        const py::object entry = all_states[parameter];
        entry.attr("clear")();
        for (const auto& [key, value] : values) entry[py::str(key)] = value;
      });
    noteUpload(true);  // host and devices have the same state
  }
  void noteUpload(bool is_taken) override {
    const WithGil gil;
    if (is_taken) is_stale_ = false;
    known_ = kept(all());
  }
  void noteStale(bool is_void) override {
    const WithGil gil;
    if (is_void) {
      all().attr("clear")();
      known_ = kept(all());
    }
    is_stale_ = true;
  }
  void noteBeginOfStep() override { is_stale_ = true; }  // at the begin, because an interrupted step changes it too
  void noteEndOfStep() override {}
  void noteDestroyed() override {
    is_stale_ = false;
    known_ = nullptr;
  }

 private:
  py::object all() const { return optimizer_.object().attr("state"); }
  /// A parameter's state. Leaves out entries that are None.
  static OptimizerTensors tensorsOf(const py::dict& state) {
    OptimizerTensors found;
    for (const auto& [name, value] : state) {
      const auto object = py::reinterpret_borrow<py::object>(value);
      if (THPVariable_Check(value.ptr()))
        found.emplace(py::str(name), THPVariable_Unpack(value.ptr()));
      else if (const std::optional<double> number = numberIn(object))
        found.emplace(py::str(name), at::scalar_tensor(*number, at::kDouble));
    }
    return found;
  }
  /// Calls visit(parameter as the optimizer holds it, its name in the model) for all groups.
  template <class Visit>
  void visitParameters(const std::vector<NamedTensor>& tensors, const Visit& visit) const {
    const ParameterNames names = optimizer::namesOf(optimizer_, tensors);
    size_t group = 0;
    for (const py::handle each : optimizer_.groups()) {
      size_t i = 0;
      for (const py::handle parameter : py::reinterpret_borrow<py::dict>(each)["params"]) {
        if (!names[group][i].empty()) visit(parameter, names[group][i]);
        ++i;
      }
      ++group;
    }
  }

  const PythonAttributes& optimizer_;
  bool is_stale_ = false;
  std::shared_ptr<py::object> known_;  // the last dict that agreed with the devices; null: none did
};

/// ipu_state and ipu_param of our own optimizers, with the flags that say which side has the newer state.
class OurState : public optimizer::HostState {
 public:
  explicit OurState(const PythonAttributes& optimizer) : optimizer_(optimizer) {}
  bool isOfTorch() const override { return false; }
  bool isNew() const override { return flag(kNew); }
  bool isStale() const override { return flag(kStale); }
  bool isThere() const override { return flag(kNew) && hasState(); }
  Taken read(const session::StoredTensors& current, const std::vector<NamedTensor>& /*tensors*/) override {
    const WithGil gil;
    const auto given = optimizer_.object().attr("_device_state")["ipu_state"].cast<OptimizerTensors>();
    return {.tensors = optimizer::fromPopTorch(given, current)};
  }
  void write(const session::StoredTensors& state, const std::vector<NamedTensor>& tensors,
             int64_t /*updates*/) override {
    const WithGil gil;
    ParameterNames names = optimizer::trainedNamesOf(optimizer_, tensors);
    names.pop_back();  // parameters outside of all groups have no entry
    py::dict both;
    both["ipu_state"] = withoutGil([&] { return optimizer::inPopTorch(state); });
    both["ipu_param"] =
        optimizer::numbersInPopTorch(optimizer::numbersOf(optimizer_, tensors, /*follows_torch=*/false), names);
    optimizer_.object().attr("_device_state") = both;
    set(kStale, false);
  }
  void noteUpload(bool is_taken) override {
    if (is_taken)
      set(kNew, false);
    else
      set(kStale, true);
  }
  void noteStale(bool is_void) override {
    if (!is_void) return;  // an optimizer from a file has the file's state
    set(kNew, false);
    set(kStale, true);
  }
  void noteBeginOfStep() override {}
  void noteEndOfStep() override { set(kStale, true); }
  void noteDestroyed() override { set(kNew, hasState()); }

 private:
  static constexpr const char *kNew = "ipu_state_is_dirty", *kStale = "host_state_is_dirty";

  bool flag(const char* name) const {
    const WithGil gil;
    return isTrueValue(optimizer_.object().attr(name));
  }
  void set(const char* name, bool value) {
    const WithGil gil;
    optimizer_.object().attr(name) = py::bool_(value);
  }
  bool hasState() const {
    const WithGil gil;
    return isTrueValue(optimizer_.object().attr("has_state")());
  }

  const PythonAttributes& optimizer_;
};

/// Threads: as optimizer::OptimizerSource.
class PythonOptimizer : public optimizer::OptimizerSource {
 public:
  PythonOptimizer(const py::object& optimizer, OptimizerKind kind, bool is_ours, const calls::Policy& policy)
      : attributes_(optimizer, kind, is_ours), follows_torch_(policy.torch_updates) {
    if (is_ours)
      state_ = std::make_unique<OurState>(attributes_);
    else
      state_ = std::make_unique<TorchState>(attributes_);
  }
  compile::OptimizerSpec spec(const std::vector<NamedTensor>& tensors) override {
    const WithGil gil;
    return optimizer::specOf(attributes_, tensors, follows_torch_);
  }
  std::optional<compile::OptimizerSpec> numbers() override {
    const WithGil gil;
    return optimizer::numbersOf(attributes_, {}, follows_torch_);
  }
  optimizer::OptimizerConstants constants(bool scaling_varies) override {
    const WithGil gil;
    return optimizer::constantsOf(attributes_, scaling_varies, follows_torch_);
  }
  optimizer::HostState* state() override { return state_.get(); }

  void requireValues() const { optimizer::requireValues(attributes_, follows_torch_); }

 private:
  const PythonAttributes attributes_;
  const bool follows_torch_;
  std::unique_ptr<optimizer::HostState> state_;
};

}  // namespace

void registerOptimizer(py::module_& module) {
  py::class_<optimizer::OptimizerSource, std::shared_ptr<optimizer::OptimizerSource>>(module, "OptimizerSource");
  py::class_<PythonOptimizer, optimizer::OptimizerSource, std::shared_ptr<PythonOptimizer>>(module, "Optimizer")
      .def(py::init<const py::object&, OptimizerKind, bool, const calls::Policy&>(), py::arg("optimizer"),
           py::kw_only(), py::arg("kind"), py::arg("is_ours"), py::arg("policy"))
      .def("requireValues", &PythonOptimizer::requireValues);
}

}  // namespace abele::bind
