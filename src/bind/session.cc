// Session: one compiled model. Everything that can take long runs without the GIL.
#include "session/session.h"
#include "session/profile.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <pybind11/functional.h>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "compile/compiled_program.h"
#include "compile/tensors.h"
#include "ir/text.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using Tensors = std::vector<at::Tensor>;
using NamedTensor = std::tuple<std::string, at::Tensor, bool>;  // name, tensor, is a parameter

/// Whether a signal's handler threw while native code waited.
class Interruption {
 public:
  host::Session::Poll poll() {
    return [this] {
      if (isEnding()) return true;
      const WithGil gil;
      if (PyErr_CheckSignals() == 0) return false;
      error_.emplace();
      return true;
    };
  }
  /// Throws what the handler threw. Requires: the GIL.
  void rethrow() const {
    if (error_) throw *error_;
  }

 private:
  std::optional<py::error_already_set> error_;
};

/// The session and the model's tensors, which it points to.
struct PythonSession {
  explicit PythonSession(const host::ProgramOptions& options) : session(options), profile_options(options.profile) {}
  std::deque<at::Tensor> tensors;  // declared first: outlives the session
  host::Session session;
  host::ProfileOptions profile_options;
  std::optional<host::Profile> profile;

  void compile(std::function<Tensors(Tensors)> forward, const std::vector<NamedTensor>& model, const Tensors& inputs,
               const host::OptimizerSpec& optimizer, const py::object& mode, std::vector<std::string> excludes,
               std::function<std::string(uintptr_t)> name_of, std::function<void(int, int)> progress,
               std::function<void(const std::vector<int>&)> check_devices) {
    host::Session::Program program;
    program.check_devices = calledWithGil(std::move(check_devices));
    program.progress = calledWithGil(std::move(progress));
    program.forward = calledWithGil(std::move(forward));
    program.model = hold(model);
    program.source_location = sourceLocator(std::move(excludes));
    program.name_of = [&](const c10::StorageImpl* storage) {
      const WithGil gil;
      return name_of(reinterpret_cast<uintptr_t>(storage));
    };
    program.mode_object = mode.is_none() ? nullptr : mode.ptr();
    Interruption interruption;
    program.poll = interruption.poll();
    try {
      const NoGil no_gil;  // autograd must not run with it; forward takes it back
      session.compile(program, inputs, optimizer);
    } catch (const Error&) {
      // Autograd's engine leaves the Python error of a backward function set, which this error stands for now.
      PyErr_Clear();
      interruption.rethrow();
      throw;
    }
    startProfile();
  }

  void load(const std::string& bytes, const std::vector<NamedTensor>& model) {
    const std::vector<capture::ModelTensor> held = hold(model);
    Interruption interruption;
    try {
      const NoGil no_gil;
      session.load(host::decodeProgram(bytes), held, interruption.poll());
    } catch (const Error&) {
      interruption.rethrow();
      throw;
    }
    startProfile();
  }

  void startProfile() {
    profile.reset();
    if (!profile_options.path.empty()) profile.emplace(profile_options, session);
  }

  /// Keeps the model's tensors for the session's lifetime.
  std::vector<capture::ModelTensor> hold(const std::vector<NamedTensor>& model) {
    std::vector<capture::ModelTensor> held;
    tensors.clear();
    for (const auto& [name, tensor, is_parameter] : model) {
      tensors.push_back(tensor);
      held.push_back({name, &tensors.back(), is_parameter});
    }
    return held;
  }

  Tensors run(const Tensors& inputs) {
    Interruption interruption;
    try {
      const NoGil no_gil;
      Tensors results = session.run(inputs, interruption.poll());
      if (profile) profile->noteRun(session);
      return results;
    } catch (const Error&) {
      interruption.rethrow();
      throw;
    }
  }
};

template <auto method>
auto withoutGil() {
  return [](PythonSession& self) {
    const NoGil no_gil;
    (self.session.*method)();
  };
}

}  // namespace

void registerSession(py::module_& module) {
  using host::Session;
  module.def(
      "requireMemory", [](const at::Tensor& tensor, const std::string& name) { host::requireMemory(tensor, name); },
      py::arg("tensor"), py::arg("name"));
  py::class_<PythonSession>(module, "Session")
      .def(py::init<host::ProgramOptions>(), py::arg("options"))
      .def("compile", &PythonSession::compile, py::arg("forward"), py::arg("model"), py::arg("inputs"),
           py::arg("optimizer"), py::arg("mode"), py::arg("excludes"), py::arg("name_of"),
           py::arg("progress") = py::none(), py::arg("check_devices") = py::none())
      .def("load", &PythonSession::load, py::arg("program"), py::arg("model"))
      .def("programBytes", [](const PythonSession& self) { return py::bytes(host::encode(self.session.program())); })
      .def("run", &PythonSession::run, py::arg("inputs"))
      .def("isCompiled", [](const PythonSession& self) { return self.session.isCompiled(); })
      .def("isOfParent", [](const PythonSession& self) { return self.session.isOfParent(); })
      .def("copyWeightsToHost", withoutGil<&Session::copyWeightsToHost>())
      .def("copyWeightsToDevice", withoutGil<&Session::copyWeightsToDevice>())
      .def(
          "copyBuffersToDevice",
          [](PythonSession& self, const std::vector<std::string>& names) { self.session.copyBuffersToDevice(names); },
          py::arg("names"))
      .def(
          "setOptimizer", [](PythonSession& self, const host::OptimizerSpec& spec) { self.session.setOptimizer(spec); },
          py::arg("optimizer"))
      .def("optimizerState", [](const PythonSession& self) { return self.session.optimizerState(); })
      .def(
          "setOptimizerState",
          [](PythonSession& self, const std::map<std::string, at::Tensor>& state) {
            self.session.setOptimizerState(state);
          },
          py::arg("state"))
      .def("lossScale", [](const PythonSession& self) { return self.session.lossScale(); })
      .def("gradientSums", [](const PythonSession& self) { return self.session.gradientSums(); })
      .def("rngState", [](const PythonSession& self) { return self.session.rngState(); })
      .def(
          "setRngState", [](PythonSession& self, const at::Tensor& state) { self.session.setRngState(state); },
          py::arg("state"))
      .def("graphText", [](const PythonSession& self) { return ir::print(self.session.graph()); })
      .def("capturedText", [](const PythonSession& self) { return self.session.capturedText(); })
      .def("planText", [](const PythonSession& self) { return plan::print(self.session.plan()); })
      .def("memoryText", [](const PythonSession& self) { return plan::memoryText(self.session.memoryReport()); })
      .def("memoryJson", [](const PythonSession& self) { return plan::memoryJson(self.session.memoryReport()); })
      .def("costs", [](const PythonSession& self) { return self.session.costs(); })
      .def("callNs", [](const PythonSession& self) { return self.session.callNs(); })
      .def("pieces", [](const PythonSession& self) { return self.session.pieces(); })
      .def("explain", [](const PythonSession& self) { return self.session.explain(); })
      .def("usesFloat64",
           [](const PythonSession& self) {
             return std::ranges::any_of(self.session.executable().slots,
                                        [](const exe::Slot& slot) { return slot.type.dtype == DType::kFloat64; });
           })
      .def("executableText", [](const PythonSession& self) { return exe::print(self.session.executable()); })
      .def("executableBytes",
           [](const PythonSession& self) { return py::bytes(exe::encode(self.session.executable())); })
      .def("stageDevices", [](const PythonSession& self) { return self.session.stageDevices(); })
      .def("tensorNames", [](const PythonSession& self) { return self.session.tensorNames(); })
      .def(
          "anchor", [](const PythonSession& self, const std::string& name) { return self.session.anchor(name); },
          py::arg("short_name"))
      .def("perfCounters", [](const PythonSession& self) { return perfCountersDict(self.session.perfCounters()); })
      .def("cycles", [](const PythonSession& self) { return self.session.cycles(); })
      .def("report", [](const PythonSession& self) { return reportDict(self.session.report()); });
}

}  // namespace abele::bind
