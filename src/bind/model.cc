// Model: the native part of a Python executor. Its module is a Python object (abele._module_source) and is asked under
// the GIL. All other code runs without the GIL.
#include "model/model.h"
#include "files/checkpoint.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/functional.h>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/gil.h"
#include "bind/notes.h"
#include "capture/annotate.h"
#include "compile/compiled_program.h"
#include "modules/frozen.h"
#include "modules/module.h"
#include "optimizer/optimizer.h"
#include "optimizer/optimizer_source.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using Tensors = std::vector<at::Tensor>;

std::atomic<uint64_t> wrappings{0};  // changes when a module is wrapped for training, or its wrapper ends

class PythonModel;

struct StateReader {
  session::StoredTensors tensors;
};

/// Notes an exception of a signal's handler that ran while native code waited.
class Interruption {
 public:
  compile::Poll poll() {
    return [this] {
      if (isEnding()) return true;
      const WithGil gil;
      if (PyErr_CheckSignals() == 0) return false;
      error_.emplace();
      return true;
    };
  }
  /// Rethrows the handler's exception. Requires: the GIL.
  void rethrow() const {
    if (error_) throw *error_;
  }

 private:
  std::optional<py::error_already_set> error_;
};

/// The arguments of a call, passed to the module if it has to compile.
struct PythonCall {
  py::object given;
  Interruption interruption;
};

/// Threads: as model::ModuleSource.
class PythonModule : public model::ModuleSource {
 public:
  explicit PythonModule(py::object source) : source_(kept(std::move(source))) {}

  std::vector<modules::NamedTensor> tensors() override {
    const WithGil gil;
    std::vector<modules::NamedTensor> tensors;
    for (auto& [name, tensor, is_parameter] : source_->attr("tensors")().cast<std::vector<TensorRow>>())
      tensors.push_back({name, tensor, is_parameter, is_parameter && tensor.requires_grad()});
    return tensors;
  }
  compile::ProgramOptions options() override {
    const WithGil gil;
    return source_->attr("options")(call->given).cast<compile::ProgramOptions>();
  }
  std::vector<modules::ModuleKind> modules() override {
    const WithGil gil;
    std::vector<modules::ModuleKind> modules;
    for (auto& [path, text] : source_->attr("modules")().cast<std::vector<std::pair<std::string, std::string>>>())
      modules.push_back({std::move(path), std::move(text)});
    return modules;
  }
  Captured capture(const std::string& /*form*/, const std::vector<modules::NamedTensor>& tensors,
                   const Compile& compile) override {
    const WithGil gil;
    calls::Constants constants;
    std::vector<size_t> written;
    std::shared_ptr<modules::Frozen> frozen;
    const auto body = [&](std::function<Tensors(Tensors)> forward, const py::object& mode,
                          std::vector<std::string> excludes, const std::function<std::string(uintptr_t)>& name_of,
                          std::function<void(int, int)> progress,
                          std::function<void(const std::vector<int>&)> check_devices,
                          std::function<std::vector<at::Generator>()> generators, std::function<std::string()> draws,
                          bool training) -> session::Session* {
      compile::Program program;
      program.draws = calledWithGil(std::move(draws));
      program.generators = calledWithGil(std::move(generators));
      program.check_devices = calledWithGil(std::move(check_devices));
      program.progress = calledWithGil(std::move(progress));
      program.forward = [&](const Tensors& inputs) {
        const WithGil with_gil;
        written.clear();
        constants.clear();
        std::vector<int64_t> versions;
        for (const at::Tensor& input : inputs) versions.push_back(input._version());
        Tensors results = forward(inputs);
        for (size_t i = 0; i < inputs.size(); ++i)
          if (inputs[i]._version() != versions[i]) written.push_back(i);
        for (size_t i = 0; i < results.size(); ++i)
          if (!capture::mayVary(results[i])) constants.emplace(i, results[i].sizes().vec());
        return results;
      };
      program.recorded = [&, training](const capture::Recording& recording) {
        frozen = std::make_shared<modules::Frozen>(recording, tensors, modules(), training);
        const WithGil with_gil;
        modules::warnOfHeldResult(recording);
      };
      program.source_location = sourceLocator(std::move(excludes));
      program.name_of = [&](const c10::StorageImpl* storage) {
        const WithGil with_gil;
        return name_of(reinterpret_cast<uintptr_t>(storage));
      };
      program.free_garbage = [] {
        const WithGil with_gil;
        py::module_::import("gc").attr("collect")();
      };
      program.mode_object = mode.is_none() ? nullptr : mode.ptr();
      try {
        const NoGil no_gil;  // autograd must not run with the GIL; forward takes it again
        return &compile(program);
      } catch (const Error&) {
        // Autograd's engine leaves the Python error of a backward function set. The Abele error replaces it.
        PyErr_Clear();
        call->interruption.rethrow();
        throw;
      }
    };
    py::object structure =
        source_->attr("capture")(call->given, py::cpp_function(body, py::return_value_policy::reference));
    auto replaced = structure.attr("replaced_names").cast<std::vector<std::string>>();
    return {.result_form = {},
            .structure = kept(std::move(structure)),
            .constants = std::move(constants),
            .written = std::move(written),
            .frozen = std::move(frozen),
            .replaced = std::move(replaced)};
  }
  void claim(const std::vector<modules::NamedTensor>& /*tensors*/) override {
    const WithGil gil;
    source_->attr("claim")();
  }
  void join() override {
    const WithGil gil;
    source_->attr("join")();
  }
  void release() override {
    const WithGil gil;
    source_->attr("release")();
  }
  std::string typeText(const at::Tensor& tensor) const override {
    const WithGil gil;
    return source_->attr("typeText")(tensor).cast<std::string>();
  }
  std::vector<std::shared_ptr<model::Model>> trainers() override;
  uint64_t generation() const override { return wrappings; }

  PythonCall* call = nullptr;  // the call in progress

 private:
  std::shared_ptr<py::object> source_;
};

class PythonModel : public model::Model {
 public:
  PythonModel(PythonModule* module, Rules rules)
      : Model(std::unique_ptr<model::ModuleSource>(module), rules), module_(*module) {}
  ~PythonModel() { forget(); }  // the owner of the model has copied its weights, or the interpreter has ended

  /// Runs work without the GIL. An exception of a signal's handler ends it.
  template <class Work>
  auto call(const Work& work, py::object given = py::none()) {
    PythonCall call{.given = std::move(given), .interruption = {}};
    const Scope scope(*this, call);
    try {
      const NoGil no_gil;
      return work();
    } catch (const Error&) {
      call.interruption.rethrow();
      throw;
    }
  }

  py::object structure() const {
    const model::ModuleSource::Captured* const found = captured();
    return found && found->structure ? *static_cast<py::object*>(found->structure.get()) : py::none();
  }
  /// Sizes of each tensor of a call of the current program; empty if no program is compiled.
  std::vector<std::vector<int64_t>> inputSizes() const {
    std::vector<std::vector<int64_t>> sizes;
    for (const Type& type : program() ? program()->inputs : std::vector<Type>()) sizes.push_back(type.sizes);
    return sizes;
  }
  calls::Constants constants() const { return captured() ? captured()->constants : calls::Constants(); }
  /// fill: called with the names of tensors on the meta device that this process needs.
  void fillWith(py::object fill) {
    fillMetaTensors([fill = kept(std::move(fill))](const std::vector<modules::NamedTensor>& needed) {
      const WithGil gil;
      std::vector<std::string> names;
      for (const modules::NamedTensor& each : needed) names.push_back(each.name);
      (*fill)(names);
    });
  }
  bool load(const std::string& bytes, const std::string& form, py::object structure, calls::Constants constants,
            bool numbers_vary, bool may_compile) {
    std::shared_ptr<py::object> held = kept(std::move(structure));
    return call([&] {
      return adopt({.program = compile::decodeProgram(bytes),
                    .form = form,
                    .captured = {.result_form = {}, .structure = std::move(held), .constants = std::move(constants)},
                    .tensors = module_.tensors(),
                    .numbers_vary = numbers_vary,
                    .may_compile = may_compile});
    });
  }
  /// objects: called with (name, tensor, is a parameter) of all tensors of the file; returns bytes. None: the file
  /// holds no objects.
  void saveFile(const std::string& path, Saving saving, const py::object& objects) {
    if (!objects.is_none())
      saving.objects = [&objects](const std::vector<modules::NamedTensor>& tensors) {
        const WithGil gil;
        std::vector<TensorRow> given;
        for (const modules::NamedTensor& t : tensors) given.emplace_back(t.name, t.tensor.detach(), t.is_parameter);
        return objects(given).cast<std::string>();
      };
    call([&] { save(path, std::move(saving)); });
  }

 private:
  /// A call may run inside another one, when Python code asks for a copy while it compiles.
  class Scope {
   public:
    Scope(PythonModel& model, PythonCall& call) : model_(model), outer_(std::exchange(model.module_.call, &call)) {
      model.setInterrupt(call.interruption.poll());
    }
    ~Scope() {
      model_.module_.call = outer_;
      model_.setInterrupt(outer_ ? outer_->interruption.poll() : nullptr);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PythonModel& model_;
    PythonCall* const outer_;
    const PythonNotes notes_;
  };

  PythonModule& module_;
};

std::vector<std::shared_ptr<model::Model>> PythonModule::trainers() {
  const WithGil gil;
  std::vector<std::shared_ptr<model::Model>> models;
  for (const py::handle model : source_->attr("trainers")())
    models.push_back(model.cast<std::shared_ptr<PythonModel>>());
  return models;
}

std::shared_ptr<PythonModel> newModel(py::object source, bool training, const py::object& options,
                                      const calls::Policy& policy) {
  const auto connection = static_cast<ConnectionType>(py::cast<int>(py::int_(options.attr("connection_type"))));
  return std::make_shared<PythonModel>(
      new PythonModule(std::move(source)),
      model::Model::Rules{.training = training,
                          .connection = connection,
                          .policy = policy,
                          .recompile_limit = options.attr("recompile_limit").cast<int64_t>()});
}

/// The method as a function of Python, which runs it without the GIL.
template <auto method, class Result, class... Arguments>
auto calledAs(Result (model::Model::*)(Arguments...)) {
  return [](PythonModel& self, Arguments... arguments) {
    return self.call([&] { return (self.*method)(std::forward<Arguments>(arguments)...); });
  };
}
template <auto method>
auto called() {
  return calledAs<method>(method);
}

}  // namespace

void registerModel(py::module_& module) {
  using calls::Policy;
  module.def("noteWrapping", [] { ++wrappings; }, "A module was wrapped for training, or no longer is.");
  py::class_<Policy>(module, "Policy", "Rules of the package that makes an executor (src/calls/policy.h).")
      .def(py::init([](const py::kwargs& fields) {
             Policy policy{.many_structures = true};
             const py::object self = py::cast(&policy, py::return_value_policy::reference);
             for (const auto& [name, value] : fields) py::setattr(self, name, value);
             return policy;
           }),
           "Fields by name; Abele's own rules where they are left out.")
      .def_readwrite("many_programs", &Policy::many_programs)
      .def_readwrite("many_structures", &Policy::many_structures)
      .def_readwrite("torch_updates", &Policy::torch_updates)
      .def_readwrite("shares_weights", &Policy::shares_weights)
      .def_readwrite("checks_captures", &Policy::checks_captures)
      .def_readwrite("short_pipelines", &Policy::short_pipelines)
      .def_readwrite("wide_numbers", &Policy::wide_numbers)
      .def_readwrite("repeats_constants", &Policy::repeats_constants)
      .def_readwrite("most_devices", &Policy::most_devices)
      .def_property(
          "input_types", [](const Policy& self) { return self.input_types.size(); },
          [](Policy& self, const std::vector<at::ScalarType>& types) {
            for (const at::ScalarType type : types) self.input_types.push_back(static_cast<DType>(type));
          },
          "Types that devices take; reads as how many there are.");
  py::class_<StateReader>(module, "StateReader", "The devices' optimizer state, which stays there until it is read.")
      .def_property_readonly("names", [](const StateReader& self) {
        std::vector<std::string> names;
        for (const auto& [name, tensor] : self.tensors) names.push_back(name);
        return names;
      });
  py::class_<PythonModel, std::shared_ptr<PythonModel>>(module, "Model")
      .def(py::init(&newModel), py::arg("source"), py::arg("training"), py::arg("options"), py::arg("policy"))
      .def_property_readonly(
          "turns",
          [](const std::shared_ptr<PythonModel>& self) {
            return lockOf(std::shared_ptr<Turns>(self, &self->turns()), "the model");
          },
          "What calls of the model take before anything else.")
      .def("isReady", &PythonModel::isReady, py::arg("inputs"), py::arg("form"))
      .def(
          "choose",
          [](PythonModel& self, const Tensors& inputs, const std::string& form, py::object given) {
            return self.call([&] { return self.choose(inputs, form); }, std::move(given));
          },
          py::arg("inputs"), py::arg("form"), py::arg("given"))
      .def("refresh", called<&PythonModel::refresh>())
      .def(
          "step",
          [](PythonModel& self, const Tensors& given, const Tensors& inputs) {
            self.beginStep();  // with the GIL, because most steps only look at the optimizer
            return self.call([&] {
              self.warnOfChanges();
              const Tensors converted = self.inTypes(inputs);
              Tensors results = self.step(given, converted);
              self.endStep();
              return self.outcome(given, converted, std::move(results));
            });
          },
          py::arg("given"), py::arg("inputs"),
          "Warns of changes, and runs a call. given: the caller's tensors; inputs: what deviceInputs() made of them.")
      .def("deviceInputs", &PythonModel::deviceInputs, py::arg("given"), py::call_guard<PythonNotes>())
      .def("anchor", &PythonModel::anchor, py::arg("short_name"))
      .def("noteTensors", called<&PythonModel::noteTensors>())
      .def("warnOnce", &PythonModel::warnOnce, py::arg("text"), py::call_guard<PythonNotes>())
      .def("trace", &PythonModel::trace, py::arg("path"), py::arg("steps"))
      .def("load", &PythonModel::load, py::kw_only(), py::arg("program"), py::arg("form"), py::arg("structure"),
           py::arg("constants"), py::arg("numbers_vary"), py::arg("may_compile"))
      .def(
          "goOnFrom",
          [](PythonModel& self, const files::Checkpoint& checkpoint, std::optional<int64_t> updates) {
            self.call([&] { self.goOnFrom(checkpoint.state, updates); });
          },
          py::arg("checkpoint"), py::arg("updates"))
      .def("checkpoint", called<&PythonModel::checkpoint>(), py::arg("weights"))
      .def(
          "writeCheckpoint",
          [](PythonModel& self, const std::string& folder, const files::Checkpoint& checkpoint, int64_t keep) {
            return py::bytes(self.call([&] { return self.writeCheckpoint(folder, checkpoint, keep); }));
          },
          py::arg("folder"), py::arg("checkpoint"), py::arg("keep"))
      .def("requireWhole", called<&PythonModel::requireWhole>(), py::arg("checkpoint"))
      .def(
          "takeWeights",
          [](PythonModel& self, const files::Checkpoint& checkpoint) {
            self.call([&] { self.takeWeights(checkpoint.weights); });
          },
          py::arg("checkpoint"))
      .def("setOptimizer", called<&PythonModel::setOptimizer>(), py::arg("optimizer"))
      .def("sendOptimizer", called<&PythonModel::sendOptimizer>())
      .def("updateOnHost", called<&PythonModel::updateOnHost>(), py::arg("step"))
      .def("requireHostUpdates", [](PythonModel& self) { self.call([&] { self.requireHostUpdates(); }); })
      .def("optimizerSpec", called<&PythonModel::optimizerSpec>())
      .def("optimizerState", [](PythonModel& self) { return StateReader{self.optimizerState()}; })
      .def(
          "read",
          [](PythonModel& self, const StateReader& state, const std::string& name) {
            return self.call([&] { return state.tensors.at(name).read(); });
          },
          py::arg("state"), py::arg("name"))
      .def("requireComplete", &PythonModel::requireComplete, py::arg("what"), py::arg("instead"))
      .def("downloadOptimizerState", called<&PythonModel::downloadOptimizerState>())
      .def_property_readonly("updates", &PythonModel::updates)
      .def(
          "save",
          [](PythonModel& self, const std::string& path, std::string version, std::string options, std::string metadata,
             std::string form, std::string result_form, const py::object& objects, bool with_model,
             bool with_random_state) {
            self.saveFile(path,
                          {.version = std::move(version),
                           .options = std::move(options),
                           .metadata = std::move(metadata),
                           .form = std::move(form),
                           .result_form = std::move(result_form),
                           .with_model = with_model,
                           .with_random_state = with_random_state},
                          objects);
          },
          py::kw_only(), py::arg("path"), py::arg("version"), py::arg("options"), py::arg("metadata"), py::arg("form"),
          py::arg("result_form"), py::arg("objects"), py::arg("with_model"), py::arg("with_random_state"))
      .def("resume", called<&PythonModel::resume>(), py::arg("file"), py::arg("parts"), py::arg("updates"))
      .def("fillMetaTensors", &PythonModel::fillWith, py::arg("fill"))
      .def("loadWeights", called<&PythonModel::loadWeights>(), py::arg("files"), py::arg("targets"))
      .def("weight", called<&PythonModel::weight>(), py::arg("name"))
      .def("saveWeights", called<&PythonModel::saveWeights>(), py::arg("folder"), py::arg("left_out"))
      .def("destroy", called<&PythonModel::destroy>())
      .def("forget", &PythonModel::forget)
      .def(
          "download", [](PythonModel& self, bool with_state) { self.call([&] { self.download(with_state); }); },
          py::arg("with_state"))
      .def("upload", [](PythonModel& self) { self.call([&] { self.upload(); }); })
      .def("pullFromTrainers", called<&PythonModel::pullFromTrainers>())
      .def("attach", called<&PythonModel::attach>())
      .def("detach", called<&PythonModel::detach>())
      .def("isStale", &PythonModel::isStale)
      .def("isCompiled", &PythonModel::isCompiled)
      .def("isAttached", &PythonModel::isAttached)
      .def("inputSizes", &PythonModel::inputSizes)
      .def("structure", &PythonModel::structure, "What capture() returned of the current program; None: there is none.")
      .def("constants", &PythonModel::constants,
           "By result of the current program, its shape where nothing changes it.")
      .def("requireDevice", &PythonModel::requireDevice, "Throws E0702 for a model of the connection type Never.")
      .def("session", &PythonModel::session, "The session of the current program; None: there is none.")
      .def(
          "compiled",
          [](PythonModel& self, const char* what) {
            self.compiled(what);
            return self.session();
          },
          py::arg("what"), "The same. Throws E0705, which says what needs it, where there is none.");
}

}  // namespace abele::bind
