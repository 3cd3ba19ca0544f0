// abele::TrainingModel and InferenceModel: a Session each, and who has the newest weights of a module.
#include "abele/model.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>

#include <ATen/core/grad_mode.h>

#include "abele/version.h"
#include "base/error.h"
#include "base/log.h"
#include "host/compiled_program.h"
#include "host/program_file.h"
#include "host/public_access.h"

namespace abele {

/// What all models of one module share.
struct CompiledModel::Sharing {
  Core* trainer = nullptr;   // the live training model
  int64_t host_version = 0;  // counts copies from a device into the module
};

/// The Sharing of a module; alive while a model of the module is.
std::shared_ptr<CompiledModel::Sharing> CompiledModel::sharingOf(const torch::nn::Module* module) {
  static std::mutex mu;
  static std::map<const torch::nn::Module*, std::weak_ptr<Sharing>> all;
  std::lock_guard lock(mu);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  if (!module) return std::make_shared<Sharing>();
  std::shared_ptr<Sharing> sharing = all[module].lock();
  if (!sharing) all[module] = sharing = std::make_shared<Sharing>();
  return sharing;
}

namespace {

std::string shapeOf(const at::Tensor& tensor) {
  return contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec()).str();
}

/// A hook is told that capture ended, however it ends.
struct CompileHooks {
  CompileHooks() { host::callPreCompileHooks(); }
  ~CompileHooks() {
    try {
      host::callPostCompileHooks();
    } catch (const std::exception& error) {
      log::warn("a hook after compilation failed: ", error.what());
    }
  }
  CompileHooks(const CompileHooks&) = delete;
  CompileHooks& operator=(const CompileHooks&) = delete;
};

}  // namespace

/// Source: spec executor.md sections 6 to 8.
class CompiledModel::Core {
 public:
  /// optimizer: of a training model; null for inference.
  Core(torch::nn::Module* module, detail::StructuredForward forward, const Options& options,
       const optim::Optimizer* optimizer)
      : user_options_(options),
        optimizer_(optimizer ? std::make_unique<optim::Optimizer>(*optimizer) : nullptr),
        module_(module),
        owner_(module ? host::ownerOf(*module) : nullptr),
        forward_(std::move(forward)),
        options_(OptionsAccess::session(options, optimizer != nullptr)),
        sharing_(sharingOf(module)) {
    host::Session check(options_);  // refuses options before anything is compiled
    options.freeze();
    user_options_.freeze();
    if (options_.training) claimTraining();
  }
  /// From a file: a compiled optimizer goes on with its own values.
  Core(const std::string& path, torch::nn::Module* module, const Options& options, const optim::Optimizer* optimizer)
      : Core(module, nullptr, options, optimizer) {
    load(path);
  }

  ~Core() {
    try {
      pullIfStale();
    } catch (const std::exception& error) {
      log::warn("weights of a training model were not copied back: ", error.what());
    }
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  }

  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  void compile(const std::vector<at::Tensor>& inputs, std::string form) {
    if (session_) {
      log::warn("compile() of a compiled model is ignored; destroy() it first to compile again");
      return;
    }
    ABELE_REQUIRE(
        forward_, E0705,
        {.what = "a loaded model that was destroyed has no forward to compile", .remedy = "load the file again"});
    if (options_.training) claimTraining();
    pullFromTrainer();
    tensors_ = module_ ? host::tensorsOf(*module_) : std::vector<host::NamedTensor>();
    host::Session::Program program;
    std::string result_form;
    program.forward = [&](const std::vector<at::Tensor>& tensors) {
      detail::Flat results = forward_(tensors, form);
      result_form = std::move(results.form);
      return std::move(results.tensors);
    };
    for (host::NamedTensor& t : tensors_) program.model.push_back({t.name, &t.tensor, t.is_parameter});
    auto session = std::make_unique<host::Session>(options_);
    {
      const CompileHooks hooks;
      session->compile(program, inputs,
                       optimizer_ ? host::optimizerSpec(*optimizer_, tensors_) : host::OptimizerSpec());
    }
    session_ = std::move(session);
    form_ = withoutTrailingNothing(std::move(form));
    result_form_ = std::move(result_form);
    attached_ = user_options_.connection_type() != ConnectionType::kNever;
    uploaded_version_ = sharing_->host_version;
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::string& form) {
    requireDevice();
    if (!session_)
      compile(inputs, form);
    else
      requireSameForm(form);
    if (!attached_) attach();
    if (!options_.training) {
      pullFromTrainer();
      if (uploaded_version_ != sharing_->host_version) upload();
    }
    if (options_.training) stale_ = true;
    return session_->run(inputs, poll_);
  }

  host::Session& compiled(const char* call) {
    ABELE_REQUIRE(
        session_, E0705,
        {.what = cat(call, " needs a compiled model"), .remedy = "call the model once, or compile() it, first"});
    return *session_;
  }
  bool isCompiled() const { return session_ != nullptr; }

  void download() {
    compiled("copyWeightsToHost()").copyWeightsToHost();
    stale_ = false;
    uploaded_version_ = ++sharing_->host_version;
  }
  void upload() {
    compiled("copyWeightsToDevice()").copyWeightsToDevice();
    stale_ = false;
    uploaded_version_ = sharing_->host_version;
  }

  void save(const std::string& path) {
    const host::Session& session = compiled("save()");
    pullIfStale();
    host::ProgramFile file;
    file.version = cat("abele ", version());
    file.program = host::encode(session.program());
    file.has_model = true;
    for (const host::NamedTensor& t : tensors_) file.tensors.push_back({t.name, t.tensor, t.is_parameter});
    file.optimizer_state = session.optimizerState();
    file.rng_state = session.rngState();
    host::writeProgramFile(path, file);
  }

  /// Goes on from a file. Requires: nothing was compiled.
  void load(const std::string& path) {
    ABELE_REQUIRE(!session_, E0705,
                  {.what = "loadExecutable() of a compiled model", .remedy = "destroy() the model first"});
    const host::ProgramFile file = host::readProgramFile(path);
    host::CompiledProgram program = host::decodeProgram(file.program);
    const exe::Executable& executable = program.executable;
    const auto kind = [](bool training) { return training ? "a training program" : "an inference program"; };
    ABELE_REQUIRE(executable.training == options_.training, E0712,
                  {.what = cat("the file holds ", kind(executable.training)),
                   .at = path,
                   .expected = kind(options_.training),
                   .remedy = "loadTrainingModel for training, loadInferenceModel for inference"});
    ABELE_REQUIRE(
        file.has_model, E0712,
        {.what = "the file holds a program without weights", .at = path, .remedy = "save it with export_model=True"});
    options_.device_iterations = executable.device_iterations;
    options_.gradient_accumulation = executable.accumulation;
    takeWeights(file);
    std::vector<capture::ModelTensor> model;
    for (host::NamedTensor& t : tensors_) model.push_back({t.name, &t.tensor, t.is_parameter});
    auto session = std::make_unique<host::Session>(options_);
    session->load(std::move(program), model);
    session->setOptimizerState(file.optimizer_state);
    if (file.rng_state.defined()) session->setRngState(file.rng_state);
    session_ = std::move(session);
    form_.reset();
    result_form_.reset();
    attached_ = user_options_.connection_type() != ConnectionType::kNever;
    uploaded_version_ = sharing_->host_version;
  }
  /// What forward returned; nothing where the program is of a file.
  const std::optional<std::string>& resultForm() const { return result_form_; }

  void destroy() {
    pullIfStale();
    session_.reset();
    attached_ = false;
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  }

  void requireDevice() const {
    ABELE_REQUIRE(user_options_.connection_type() != ConnectionType::kNever, E0702,
                  {.what = "the connection type is Never: the model compiles, and does not run",
                   .remedy = "connectionType(ConnectionType::kAlways) or kOnDemand"});
  }
  bool isAttached() const { return attached_; }
  void attach() {
    compiled("attachToDevice()");
    ABELE_REQUIRE(!attached_, E0705, {.what = "the model is attached already"});
    requireDevice();
    upload();
    attached_ = true;
  }
  void detach() {
    compiled("detachFromDevice()");
    ABELE_REQUIRE(attached_, E0705, {.what = "the model is not attached"});
    pullIfStale();
    attached_ = false;
  }

  bool pullIfStale() {
    if (!session_ || !stale_) return false;
    download();
    return true;
  }

  void uploadBuffers() {
    host::Session& session = compiled("copyNamedBuffersToDevice()");
    const std::optional<Setting> listed = user_options_.Popart().get("updatableNamedBuffers");
    const auto* names = listed ? std::get_if<std::vector<std::string>>(&*listed) : nullptr;
    ABELE_REQUIRE(names && !names->empty(), E0702,
                  {.what = "no buffers are listed", .remedy = "Options::updatableNamedBuffers({...})"});
    session.copyBuffersToDevice(*names);
  }

  std::map<std::string, at::Tensor> stateDict() {
    pullFromTrainer();
    pullIfStale();
    if (!session_ && module_) tensors_ = host::tensorsOf(*module_);
    std::map<std::string, at::Tensor> state;
    for (const host::NamedTensor& t : tensors_) state.emplace(t.name, t.tensor);
    return state;
  }

  void loadStateDict(const std::map<std::string, at::Tensor>& state) {
    const std::map<std::string, at::Tensor> own = stateDict();
    for (const auto& [name, tensor] : state) {
      const auto it = own.find(name);
      ABELE_REQUIRE(it != own.end() && it->second.sizes() == tensor.sizes(), E0708,
                    {.what = cat("the model does not fit the state's ", name),
                     .found = shapeOf(tensor),
                     .expected = it == own.end() ? "no such tensor" : shapeOf(it->second)});
    }
    for (const auto& [name, tensor] : own)
      ABELE_REQUIRE(state.contains(name), E0708, {.what = cat("the state has no ", name), .expected = shapeOf(tensor)});
    at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : state) own.at(name).copy_(tensor);
    ++sharing_->host_version;
    if (session_ && attached_) upload();
  }

  void setOptimizer(const optim::Optimizer& optimizer) {
    if (session_) {
      host::requireSameConstants(*optimizer_, optimizer);
      session_->setOptimizer(host::optimizerSpec(optimizer, tensors_));
    }
    *optimizer_ = optimizer;
  }

  int64_t cycles() {
    const std::optional<Setting> counts = user_options_.Popart().get("instrumentWithHardwareCycleCounter");
    ABELE_REQUIRE(counts && std::get_if<bool>(&*counts) && std::get<bool>(*counts), E0702,
                  {.what = "cycle counting is disabled", .remedy = "Options::logCycleCount(true)"});
    const int64_t cycles = compiled("cycleCount()").cycles();
    ABELE_REQUIRE(cycles != 0, E0705, {.what = "cycleCount() before the first call", .remedy = "call the model first"});
    return cycles;
  }
  const Options& options() const { return user_options_; }

  void group(const std::string& parameter, CommGroupType type, int64_t shards, VariableRetrievalMode mode) {
    ABELE_REQUIRE(!session_, E0705,
                  {.what = cat("replicaGrouping of ", parameter, " after the model was compiled"),
                   .remedy = "call it before the model, or destroy() the model first"});
    std::erase_if(options_.groupings, [&](const auto& grouping) { return grouping.parameter == parameter; });
    options_.groupings.push_back(
        {parameter, host::commGroup(type), shards, mode == VariableRetrievalMode::kAllReplicas});
  }

  MemoryReport memoryReport() { return host::publicMemory(compiled("memoryReport()").memoryReport(), options_); }
  std::string report() { return host::reportText(compiled("report()").report()); }
  std::string costs() { return compiled("costs()").costs(); }
  std::string explain() { return compiled("explain()").explain(); }
  void setInterrupt(std::function<bool()> poll) { poll_ = std::move(poll); }
  const std::vector<host::NamedTensor>& tensors() const { return tensors_; }

 private:
  /// The file's weights into the module's tensors of the same names; without a module they are the model's own.
  void takeWeights(const host::ProgramFile& file) {
    at::NoGradGuard no_grad;
    tensors_ = module_ ? host::tensorsOf(*module_) : std::vector<host::NamedTensor>();
    for (const host::SavedTensor& saved : file.tensors) {
      if (!module_) {
        tensors_.push_back({saved.name, saved.tensor, saved.is_parameter});
        continue;
      }
      auto own = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == saved.name; });
      const bool fits = own != tensors_.end() && own->tensor.sizes() == saved.tensor.sizes() &&
                        own->tensor.scalar_type() == saved.tensor.scalar_type();
      ABELE_REQUIRE(fits, E0712,
                    {.what = cat("the module does not fit the file's ", saved.name),
                     .found = own == tensors_.end() ? "no such tensor" : shapeOf(own->tensor),
                     .expected = shapeOf(saved.tensor),
                     .remedy = "pass a module of the class that was saved, or none"});
      own->tensor.copy_(saved.tensor);
    }
  }

  static std::string withoutTrailingNothing(std::string form) {
    while (form.ends_with('-')) form.pop_back();
    return form;
  }
  void requireSameForm(const std::string& form) const {
    ABELE_REQUIRE(!form_ || withoutTrailingNothing(form) == *form_, E0704,
                  {.what = "the arguments are built otherwise than those that the model was compiled for",
                   .found = form,
                   .expected = *form_,
                   .remedy = "make another model for them, or destroy() this one first; t is a tensor, - an empty "
                             "optional, [...] a tuple, pair, array or vector, {...} a map by key"});
  }

  void claimTraining() {
    ABELE_REQUIRE(!sharing_->trainer || sharing_->trainer == this, E0709,
                  {.what = "the module is already wrapped for training",
                   .found = "a live training model of it",
                   .expected = "one training model per module",
                   .remedy = "destroy() the other training model first"});
    sharing_->trainer = this;
  }
  void pullFromTrainer() {
    if (sharing_->trainer && sharing_->trainer != this) sharing_->trainer->pullIfStale();
  }

  const Options user_options_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  torch::nn::Module* module_;
  std::shared_ptr<const void> owner_;
  detail::StructuredForward forward_;
  std::optional<std::string> form_, result_form_;  // of the compiled program's arguments and results
  host::SessionOptions options_;
  std::shared_ptr<Sharing> sharing_;
  std::vector<host::NamedTensor> tensors_;  // of the compiled session, which points into it
  std::unique_ptr<host::Session> session_;
  std::function<bool()> poll_;
  bool attached_ = false;
  bool stale_ = false;  // the device is newer than the module
  int64_t uploaded_version_ = 0;
};

/// Makes the public objects.
class ModelAccess {
 public:
  template <class Model, class... Parts>
  static Model build(Parts&&... parts) {
    return Model(std::make_unique<CompiledModel::Core>(std::forward<Parts>(parts)...));
  }
};

namespace {

std::string formOf(const std::vector<at::Tensor>& tensors) { return std::string(tensors.size(), 't'); }

detail::StructuredForward ofLists(Forward forward) {
  return [forward = std::move(forward)](const std::vector<at::Tensor>& inputs, const std::string&) {
    return detail::flattenedResults(forward(inputs));
  };
}

}  // namespace

TrainingModel makeTrainingModel(torch::nn::Module& module, Forward forward, const Options& options,
                                const optim::Optimizer& optimizer) {
  return detail::makeTrainingModel(module, ofLists(std::move(forward)), options, optimizer);
}
InferenceModel makeInferenceModel(torch::nn::Module* module, Forward forward, const Options& options) {
  return detail::makeInferenceModel(module, ofLists(std::move(forward)), options);
}
TrainingModel detail::makeTrainingModel(torch::nn::Module& module, StructuredForward forward, const Options& options,
                                        const optim::Optimizer& optimizer) {
  auto model = ModelAccess::build<TrainingModel>(&module, std::move(forward), options, &optimizer);
  host::optimizerSpec(optimizer, host::tensorsOf(module));  // refuses a wrong optimizer at once
  return model;
}
InferenceModel detail::makeInferenceModel(torch::nn::Module* module, StructuredForward forward,
                                          const Options& options) {
  return ModelAccess::build<InferenceModel>(module, std::move(forward), options, nullptr);
}

TrainingModel loadTrainingModel(const std::string& path, const Options& options) {
  const optim::Optimizer unused = optim::SGD{};
  return ModelAccess::build<TrainingModel>(path, nullptr, options, &unused);
}
TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  const optim::Optimizer unused = optim::SGD{};
  return ModelAccess::build<TrainingModel>(path, &module, options, &unused);
}
InferenceModel loadInferenceModel(const std::string& path, const Options& options) {
  return ModelAccess::build<InferenceModel>(path, nullptr, options, nullptr);
}
InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  return ModelAccess::build<InferenceModel>(path, &module, options, nullptr);
}

CompiledModel::Core& CompiledModel::core() const {
  ABELE_REQUIRE(core_, E0705, {.what = "this model was moved from", .remedy = "use the object that it was moved to"});
  return *core_;
}
CompiledModel::CompiledModel(std::unique_ptr<Core> core) : core_(std::move(core)) {}
CompiledModel::CompiledModel(CompiledModel&&) noexcept = default;
CompiledModel& CompiledModel::operator=(CompiledModel&&) noexcept = default;
CompiledModel::~CompiledModel() = default;

std::vector<at::Tensor> CompiledModel::operator()(const std::vector<at::Tensor>& inputs) {
  return core().run(inputs, formOf(inputs));
}
std::vector<at::Tensor> CompiledModel::runFlat(const detail::Flat& inputs) {
  return core().run(inputs.tensors, inputs.form);
}
void CompiledModel::compile(const std::vector<at::Tensor>& inputs) { core().compile(inputs, formOf(inputs)); }
void CompiledModel::compileFlat(const detail::Flat& inputs) { core().compile(inputs.tensors, inputs.form); }
std::optional<std::string> CompiledModel::resultForm() const { return core().resultForm(); }
MemoryReport CompiledModel::memoryReport() const { return core().memoryReport(); }
void CompiledModel::compileAndExport(const std::string& path, const std::vector<at::Tensor>& inputs) {
  if (!isCompiled()) compile(inputs);
  save(path);
}
void CompiledModel::loadExecutable(const std::string& path) { core().load(path); }
bool CompiledModel::isCompiled() const { return core().isCompiled(); }
const Options& CompiledModel::options() const { return core().options(); }
void CompiledModel::copyWeightsToHost() { core().download(); }
bool CompiledModel::copyWeightsToHostIfNeeded() { return core().pullIfStale(); }
void CompiledModel::copyWeightsToDevice() { core().upload(); }
void CompiledModel::copyNamedBuffersToDevice() { core().uploadBuffers(); }
std::map<std::string, at::Tensor> CompiledModel::stateDict() { return core().stateDict(); }
void CompiledModel::loadStateDict(const std::map<std::string, at::Tensor>& state) { core().loadStateDict(state); }
bool CompiledModel::isAttachedToDevice() const { return core().isAttached(); }
void CompiledModel::attachToDevice() { core().attach(); }
void CompiledModel::detachFromDevice() { core().detach(); }
at::Tensor CompiledModel::rngState() const { return core().compiled("rngState()").rngState(); }
void CompiledModel::setRngState(const at::Tensor& state) {
  host::Session& session = core().compiled("setRngState()");
  const at::Tensor now = session.rngState();
  const auto refuse = [&] {
    throwUser(ErrorCode::E0708, {.what = "this is no state of a random stream",
                                 .found = state.defined() ? shapeOf(state) : "an undefined tensor",
                                 .expected = shapeOf(now),
                                 .remedy = "pass what rngState() returned"});
  };
  if (!state.defined() || state.scalar_type() != now.scalar_type()) refuse();
  try {
    session.setRngState(state);  // with or without a part for stochastic rounding
  } catch (const c10::Error&) {
    refuse();
  }
}
const std::vector<std::string>& CompiledModel::getTensorNames() const {
  return core().compiled("getTensorNames()").tensorNames();
}
at::Tensor CompiledModel::getAnchoredTensor(const std::string& short_name) const {
  return core().compiled("getAnchoredTensor()").anchor(short_name);
}
ModelTimes CompiledModel::getPerfCounters() const {
  host::PerfCounters counters = core().compiled("getPerfCounters()").perfCounters();
  return {std::move(counters.input), std::move(counters.input_complete), std::move(counters.output),
          std::move(counters.output_complete)};
}
int64_t CompiledModel::cycleCount() const { return core().cycles(); }
std::string CompiledModel::report() const { return core().report(); }
std::string CompiledModel::costs() const { return core().costs(); }
std::string CompiledModel::explain() const { return core().explain(); }
std::string explain(const CompiledModel& model) { return model.explain(); }
void CompiledModel::save(const std::string& path) { core().save(path); }
void CompiledModel::destroy() { core().destroy(); }
void CompiledModel::setInterrupt(std::function<bool()> poll) { core().setInterrupt(std::move(poll)); }

void TrainingModel::replicaGrouping(const std::string& parameter, CommGroupType type, int64_t shards,
                                    VariableRetrievalMode mode) {
  core().group(parameter, type, shards, mode);
}
void TrainingModel::setOptimizer(const optim::Optimizer& optimizer) { core().setOptimizer(optimizer); }
std::map<std::string, at::Tensor> TrainingModel::optimizerState() const {
  return core().compiled("optimizerState()").optimizerState();
}
void TrainingModel::setOptimizerState(const std::map<std::string, at::Tensor>& state) {
  core().compiled("setOptimizerState()").setOptimizerState(state);
}

}  // namespace abele
