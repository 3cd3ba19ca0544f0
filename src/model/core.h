// Behind abele::CompiledModel: its Session, and who has the newest weights of a module. Used by api/model.cc.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <ATen/core/grad_mode.h>

#include "abele/model.h"
#include "abele/version.h"
#include "base/error.h"
#include "base/log.h"
#include "base/turns.h"
#include "compile/compiled_program.h"
#include "compile/from_options.h"
#include "compile/tensors.h"
#include "model/access.h"
#include "model/forms.h"
#include "model/lines.h"
#include "model/program_file.h"
#include "model/trained_parameters.h"
#include "session/session.h"

namespace abele {
namespace host {

inline std::string shapeOf(const at::Tensor& tensor) {
  return contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec()).str();
}

/// A hook is told that capture ended, however it ends.
struct CompileHooks {
  CompileHooks() { callPreCompileHooks(); }
  ~CompileHooks() {
    try {
      callPostCompileHooks();
    } catch (const std::exception& error) {
      log::warn("a hook after compilation failed: ", error.what());
    }
  }
  CompileHooks(const CompileHooks&) = delete;
  CompileHooks& operator=(const CompileHooks&) = delete;
};

}  // namespace host

/// What all models of one module share.
struct CompiledModel::Sharing {
  Turns turns;  // of the training model, and of whoever reads or writes the module's tensors; guards what follows
  Core* trainer = nullptr;   // the live training model
  int64_t host_version = 0;  // counts copies from a device into the module
};

/// Source: spec executor.md sections 6 to 8. Threads: whoever has a turn of turns(), but where it says otherwise.
class CompiledModel::Core {
 public:
  /// optimizer: of a training model; null for inference. line: where the program wrapped the model.
  Core(torch::nn::Module* module, detail::StructuredForward forward, const Options& options,
       const optim::Optimizer* optimizer, std::string line = {})
      : user_options_(options),
        optimizer_(optimizer ? std::make_unique<optim::Optimizer>(*optimizer) : nullptr),
        module_(module),
        owner_(module ? host::ownerOf(*module) : nullptr),
        forward_(std::move(forward)),
        line_(std::move(line)),
        options_(host::programOptions(OptionsAccess::values(options), optimizer != nullptr)),
        sharing_(sharingOf(module)) {
    host::Session check(options_);  // refuses options before anything is compiled
    options.freeze();
    user_options_.freeze();
    if (!options_.training) return;
    const Turns::Turn turn = moduleTurn();
    claimTraining();
  }
  /// From a file: a compiled optimizer goes on with its own values.
  Core(const std::string& path, torch::nn::Module* module, const Options& options, const optim::Optimizer* optimizer)
      : Core(module, nullptr, options, optimizer) {
    load(path);
  }

  // Waits for other threads that copy its weights.
  ~Core() {
    try {
      const Turns::Turn turn = options_.training ? moduleTurn() : Turns::Turn();
      pullBeforeTheEnd();
      if (sharing_->trainer == this) sharing_->trainer = nullptr;
    } catch (const std::exception& error) {
      log::warn("weights of a training model were not copied back: ", error.what());
      if (sharing_->trainer == this) sharing_->trainer = nullptr;
    }
    host::releaseParameters(this);
  }

  /// What calls of this model take before anything else. Threads: any.
  Turns& turns() { return options_.training ? sharing_->turns : own_turns_; }

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
    const Turns::Turn turn = moduleTurn();  // captures lock the memory of the module
    if (options_.training) claimTraining();
    pullFromTrainer();
    tensors_ = module_ ? host::tensorsOf(*module_) : std::vector<host::NamedTensor>();
    if (options_.training) host::claimParameters(this, tensors_);
    host::Session::Program program;
    std::string result_form;
    program.forward = [&](const std::vector<at::Tensor>& tensors) {
      detail::Flat results = forward_(tensors, form);
      result_form = std::move(results.form);
      return std::move(results.tensors);
    };
    const host::LineScope line(line_);
    program.source_location = host::currentLine;
    program.checks_comparisons = true;
    program.poll = poll_;
    for (host::NamedTensor& t : tensors_) program.model.push_back({t.name, &t.tensor, t.is_parameter});
    auto session = std::make_unique<host::Session>(options_);
    {
      const host::CompileHooks hooks;
      session->compile(program, inputs,
                       optimizer_ ? host::optimizerSpec(*optimizer_, tensors_) : host::OptimizerSpec());
    }
    session_ = std::move(session);
    is_compiled_ = true;
    form_ = host::withoutTrailingNothing(std::move(form));
    result_form_ = std::move(result_form);
    is_loaded_ = false;
    attached_ = user_options_.connection_type() != ConnectionType::kNever;
    uploaded_version_ = sharing_->host_version;
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::string& form) {
    requireDevice();
    if (!session_) compile(inputs, form);
    const std::vector<at::Tensor> ordered = inOrder(inputs, form);
    if (!attached_) attach();
    if (!options_.training) {
      const Turns::Turn turn = moduleTurn();
      pullFromTrainer();
      if (uploaded_version_ != sharing_->host_version) upload();
    }
    if (options_.training) stale_ = true;
    return session_->run(ordered, poll_);
  }

  host::Session& compiled(const char* call) {
    ABELE_REQUIRE(
        session_, E0705,
        {.what = cat(call, " needs a compiled model"), .remedy = "call the model once, or compile() it, first"});
    return *session_;
  }
  /// Threads: any.
  bool isCompiled() const { return is_compiled_; }

  void download() {
    const Turns::Turn turn = moduleTurn();
    compiled("copyWeightsToHost()").copyWeightsToHost();
    stale_ = false;
    uploaded_version_ = ++sharing_->host_version;
  }
  void upload() {
    const Turns::Turn turn = moduleTurn();
    compiled("copyWeightsToDevice()").copyWeightsToDevice();
    stale_ = false;
    uploaded_version_ = sharing_->host_version;
  }

  void save(const std::string& path) {
    const host::Session& session = compiled("save()");
    const Turns::Turn turn = moduleTurn();
    pullIfStale();
    for (const host::NamedTensor& t : tensors_) host::requireMemory(t.tensor, t.name);
    host::ProgramFile file;
    file.version = cat("abele ", version());
    file.program = host::encode(session.program());
    file.form = form_;
    file.result_form = result_form_;
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
    const Turns::Turn turn = moduleTurn();
    const host::ProgramFile file = host::readProgramFile(path);
    host::CompiledProgram program = host::decodeProgram(file.program);
    const exe::Executable& executable = program.executable;
    const auto kind = [](bool training) { return training ? "a training program" : "an inference program"; };
    ABELE_REQUIRE(executable.training == options_.training, E0712,
                  {.what = cat("the file holds ", kind(executable.training)),
                   .at = path,
                   .expected = kind(options_.training),
                   .remedy = "loadTrainingModel for training, loadInferenceModel for inference"});
    ABELE_REQUIRE(file.has_model || module_, E0712,
                  {.what = "the file holds a program without weights",
                   .at = path,
                   .remedy = "pass the module, or save with export_model=True in Python"});
    const host::OptimizerSpec optimizer = program.optimizer;
    options_.device_iterations = executable.device_iterations;
    options_.gradient_accumulation = executable.accumulation;
    takeWeights(file);
    for (host::NamedTensor& t : tensors_) t.trains = optimizer.rules.group_of.contains(t.name);
    std::vector<capture::ModelTensor> model;
    for (host::NamedTensor& t : tensors_) model.push_back({t.name, &t.tensor, t.is_parameter});
    auto session = std::make_unique<host::Session>(options_);
    session->load(std::move(program), model, poll_);
    if (file.has_model) session->setOptimizerState(file.optimizer_state);
    if (file.rng_state.defined()) session->setRngState(file.rng_state);
    session_ = std::move(session);
    is_compiled_ = true;
    if (optimizer_ && optimizer.rules.kind != passes::OptimizerRules::Kind::kNone)
      *optimizer_ = host::optimizerOf(optimizer);
    form_ = file.form;
    result_form_ = file.result_form;
    is_loaded_ = true;
    attached_ = user_options_.connection_type() != ConnectionType::kNever;
    uploaded_version_ = sharing_->host_version;
  }
  /// What forward returned.
  const std::string& resultForm() const { return result_form_; }

  void destroy() {
    const Turns::Turn turn = moduleTurn();
    pullBeforeTheEnd();
    session_.reset();
    is_compiled_ = false;
    stale_ = false;
    attached_ = false;
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
    host::releaseParameters(this);
  }

  void requireDevice() const {
    ABELE_REQUIRE(user_options_.connection_type() != ConnectionType::kNever, E0702,
                  {.what = "the connection type is Never: the model compiles, and does not run",
                   .remedy = "connectionType(ConnectionType::kAlways) or kOnDemand"});
  }
  /// Threads: any.
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

  /// api/verify.cc
  Verification verify(const std::vector<detail::Flat>& batches);

  bool pullIfStale() {
    if (!session_ || !stale_) return false;
    download();
    return true;
  }

  void uploadBuffers() {
    const Turns::Turn turn = moduleTurn();
    host::Session& session = compiled("copyNamedBuffersToDevice()");
    const std::optional<Setting> listed = user_options_.Popart().get("updatableNamedBuffers");
    const auto* names = listed ? std::get_if<std::vector<std::string>>(&*listed) : nullptr;
    ABELE_REQUIRE(names && !names->empty(), E0702,
                  {.what = "no buffers are listed", .remedy = "Options::updatableNamedBuffers({...})"});
    session.copyBuffersToDevice(*names);
  }

  std::map<std::string, at::Tensor> stateDict() {
    const Turns::Turn turn = moduleTurn();
    pullFromTrainer();
    pullIfStale();
    if (!session_ && module_) tensors_ = host::tensorsOf(*module_);
    std::map<std::string, at::Tensor> state;
    for (const host::NamedTensor& t : tensors_) state.emplace(t.name, t.tensor);
    return state;
  }

  void loadStateDict(const std::map<std::string, at::Tensor>& state) {
    const Turns::Turn turn = moduleTurn();
    const std::map<std::string, at::Tensor> own = stateDict();
    for (const auto& [name, tensor] : state) {
      const auto it = own.find(name);
      ABELE_REQUIRE(it != own.end() && it->second.sizes() == tensor.sizes(), E0708,
                    {.what = cat("the model does not fit the state's ", name),
                     .found = host::shapeOf(tensor),
                     .expected = it == own.end() ? "no such tensor" : host::shapeOf(it->second)});
      host::requireMemory(tensor, cat("the state's ", name));
      host::requireMemory(it->second, name);
    }
    for (const auto& [name, tensor] : own)
      ABELE_REQUIRE(state.contains(name), E0708,
                    {.what = cat("the state has no ", name), .expected = host::shapeOf(tensor)});
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

  const optim::Optimizer& optimizer() const { return *optimizer_; }

  int64_t cycles() {
    const std::optional<Setting> counts = user_options_.Popart().get("instrumentWithHardwareCycleCounter");
    ABELE_REQUIRE(counts && std::get_if<bool>(&*counts) && std::get<bool>(*counts), E0702,
                  {.what = "cycle counting is disabled", .remedy = "Options::logCycleCount(true)"});
    const int64_t cycles = compiled("cycleCount()").cycles();
    ABELE_REQUIRE(cycles != 0, E0705, {.what = "cycleCount() before the first call", .remedy = "call the model first"});
    return cycles;
  }
  /// Threads: any.
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
  const torch::nn::Module* module() const { return module_; }

 private:
  /// Around what reads or writes the module's tensors, or captures; a training model's own calls have it.
  Turns::Turn moduleTurn() {
    return sharing_->turns.isMine() ? Turns::Turn() : sharing_->turns.take("the training model of the module");
  }
  /// A forked child has no devices to copy from.
  void pullBeforeTheEnd() {
    if (session_ && !session_->isOfParent()) pullIfStale();
  }

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
                     .found = own == tensors_.end() ? "no such tensor" : host::shapeOf(own->tensor),
                     .expected = host::shapeOf(saved.tensor),
                     .remedy = "pass a module of the class that was saved, or none"});
      host::requireMemory(own->tensor, own->name);
      own->tensor.copy_(saved.tensor);
    }
  }

  /// The tensors of a call in the program's order. A loaded program also takes them alone: as many as it has.
  std::vector<at::Tensor> inOrder(const std::vector<at::Tensor>& inputs, const std::string& form) const {
    std::optional<std::vector<size_t>> order = host::tensorOrder(form_, host::withoutTrailingNothing(form));
    const bool only_tensors = is_loaded_ && form.find_first_not_of('t') == std::string::npos;
    if (!order && only_tensors) return inputs;
    ABELE_REQUIRE(
        order, E0704,
        {.what = "the arguments are built otherwise than those that the model was compiled for",
         .found = detail::formInWords(form),
         .expected = detail::formInWords(form_),
         .remedy = "make another model for them, or destroy() this one first; in brackets is a tuple, struct, "
                   "array or vector, in braces a map by key; nothing is an empty optional"});
    std::vector<at::Tensor> ordered;
    for (const size_t i : *order) ordered.push_back(inputs.at(i));
    return ordered;
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
  std::string line_;                // "train.cpp:88"
  std::string form_, result_form_;  // of the compiled program's arguments and results
  bool is_loaded_ = false;          // the program is of a file
  host::ProgramOptions options_;
  std::shared_ptr<Sharing> sharing_;
  Turns own_turns_;                         // of an inference model
  std::vector<host::NamedTensor> tensors_;  // of the compiled session, which points into it
  std::unique_ptr<host::Session> session_;
  std::function<bool()> poll_;
  std::atomic<bool> is_compiled_ = false;
  std::atomic<bool> attached_ = false;
  bool stale_ = false;  // the device is newer than the module
  int64_t uploaded_version_ = 0;
};

/// One call of a model.
class CompiledModel::Call {
 public:
  explicit Call(Core& core) : turn_(core.turns().take("the model")), core_(core) {}
  Core* operator->() const { return &core_; }

 private:
  Turns::Turn turn_;
  Core& core_;
};

}  // namespace abele
