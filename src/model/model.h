// A user's model: its compiled programs, one for each kind of input, and whose weights are newest. The front ends of
// both languages use it: libtorch_model.h for C++, bind/model.cc for Python.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "abele/enums.h"
#include "base/turns.h"
#include "files/checkpoint.h"
#include "files/program_file.h"
#include "files/trained_state.h"
#include "files/weight_files.h"
#include "model/module_source.h"
#include "modules/module.h"
#include "optimizer/optimizer.h"
#include "optimizer/optimizer_sync.h"
#include "report/profile.h"
#include "report/timeline.h"
#include "session/device_use.h"
#include "session/session.h"

namespace abele::registry {
class Attachment;
}

namespace abele::model {

/// Shared by all models of one module.
struct Sharing {
  Turns turns;  // of the training model, and of whoever reads or writes the module's tensors; guards what follows
  Model* trainer = nullptr;               // the live training model
  std::atomic<int64_t> host_version = 0;  // counts copies from a device into the module; models of other modules look
};

/// Source: spec executor.md sections 6 to 8. Threads: the one that has the turn of turns(), unless stated otherwise.
class Model {
 public:
  struct Rules {
    bool training = false;
    ConnectionType connection = ConnectionType::kAlways;
    calls::Policy policy = {};
    int64_t recompile_limit = 64;  // programs of the model, before a warning
  };
  /// sharing: null if only models that the source names share the module.
  Model(std::unique_ptr<ModuleSource> source, Rules rules, std::shared_ptr<Sharing> sharing = nullptr);
  /// Waits for other threads that copy its weights.
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Calls of this model take this first. Threads: any.
  Turns& turns() { return rules_.training ? sharing_->turns : own_turns_; }

  /// Would choose() and refresh() do nothing? Cheap.
  bool isReady(const std::vector<at::Tensor>& inputs, const std::string& form) const;
  /// Makes the program for inputs of this kind the current one; compiles it if there is none. Weights, optimizer
  /// state and random numbers move from the previous program. Returns: whether the program has changed.
  bool choose(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// The model is on its devices, with the newest weights. Requires: it is compiled.
  void refresh();
  /// A call of the current program. given: the caller's tensors; inputs: those that the program takes, in its order.
  /// Requires: refresh(), beginStep().
  std::vector<at::Tensor> step(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs);
  /// Before and after a step: the optimizer's part of it.
  void beginStep();
  void endStep();
  /// By the rules of the policy: tensors of a call as the devices take them; in the types of the current program; and,
  /// after a step with `inputs`, its results as callers get them. `given` then has what forward wrote. Throw E0609,
  /// E0708.
  std::vector<at::Tensor> deviceInputs(const std::vector<at::Tensor>& given);
  std::vector<at::Tensor> inTypes(std::vector<at::Tensor> inputs) const;
  std::vector<at::Tensor> outcome(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs,
                                  std::vector<at::Tensor> results) const;
  /// An anchor of the last call, likewise. Throws E0705, E0708, E0609.
  at::Tensor anchor(const std::string& short_name);
  /// All of these. form: of the arguments, as detail::Flat has it.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::string& form);
  void compile(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// What forward returned in the last call.
  const std::string& resultForm() const { return program_->captured.result_form; }
  /// Of the current program; null: nothing is compiled.
  const ModuleSource::Captured* captured() const { return program_ ? &program_->captured : nullptr; }
  void destroy();
  /// The model has no device to copy weights from any more, for example because its module's interpreter has ended.
  void forget() { stale_ = false; }

  /// Throws E0702 for a model of the connection type Never, which only compiles.
  void requireDevice() const;
  /// The session of the current program. Throws E0705, which names the call, if nothing is compiled.
  session::Session& compiled(const char* call);
  /// The same; lives while anybody holds it. Null: nothing is compiled.
  std::shared_ptr<session::Session> session() const;
  /// Threads: any.
  bool isCompiled() const { return is_compiled_; }
  /// Number of programs, one for each kind of input.
  size_t numPrograms() const { return programs_.size(); }

  /// The weights to the module. with_state: and a state of the optimizer that belongs to torch.
  void download(bool with_state = false);
  /// The weights to the devices, and what the optimizer has on the host.
  void upload();
  bool pullIfStale();
  /// Does the device have newer weights than the module? Threads: any.
  bool isStale() const { return stale_; }
  /// Brings newer weights of models that train the module into it.
  void pullFromTrainers();

  /// Sets the source of contents for tensors on the meta device. fill: gives these memory and contents.
  /// It is called when a program is compiled or loaded, for the tensors that this process's devices have.
  using Fill = std::function<void(const std::vector<modules::NamedTensor>& needed)>;
  void fillMetaTensors(Fill fill);
  /// The module's tensors from files, and to the devices. Those on the meta device are read when a program needs them.
  /// targets: all tensors of the module. Throws E0708 before anything changes; E0501, E0712: then some have changed.
  void loadWeights(const std::shared_ptr<const files::WeightFiles>& files,
                   const std::vector<files::WeightTarget>& targets);
  /// For requests of all tensors. Throws E0711 if other processes have tensors on the meta device (or the optimizer's
  /// state), E0705 if the module's own are still to be read. what: the request; instead: the call to use.
  void requireComplete(const char* what, const char* instead);
  /// A copy of the newest value of a tensor of the module, in all processes that hold stages: all call it, in one
  /// order. Throws E0708 for another name.
  at::Tensor weight(const std::string& name);
  /// Writes the newest weights into files of the folder, which it creates: one file, or, if processes hold stages, one
  /// per process with its part, and an index. All processes call it. left_out: names of tensors outside the
  /// module's state. Throws E0712, in all processes if one cannot write.
  void saveWeights(const std::string& folder, const std::vector<std::string>& left_out = {});
  /// The optimizer of now. Throws E0706 for numbers that the program, where there is one, cannot take.
  void setOptimizer(std::shared_ptr<optimizer::OptimizerSource> optimizer);
  /// Its numbers of now to the devices, where there are some.
  void sendOptimizer();
  /// What it asks for now; without one an empty spec.
  compile::OptimizerSpec optimizerSpec();
  /// Brings the devices' optimizer state into the optimizer, where it keeps one.
  void downloadOptimizerState();
  /// The devices' state, one tensor after the other, whichever process has it: all that hold stages read the same ones,
  /// in one order. Empty: nothing is compiled. Keeps the program alive.
  session::StoredTensors optimizerState() const;
  /// That the devices' optimizer state comes from.
  int64_t updates() const { return optimizer_.updates(); }

  /// Threads: any.
  bool isAttached() const { return attached_; }
  /// Takes devices (registry/attachment.h), and the model to them. Throws E0402, E0602, E0702, E0705.
  void attach();
  void detach();

  /// A program that was compiled before, in the place of one to compile. Throws E0712. Requires: nothing is compiled.
  struct Adopted {
    compile::CompiledProgram program;
    std::string form;
    ModuleSource::Captured captured;
    std::vector<modules::NamedTensor> tensors;  // that its weights are
    bool is_final = false;                      // no forward to compile another one with
    bool keeps_optimizer = false;               // with the numbers that it was saved with
    bool numbers_vary = false;                  // no number of the optimizer is a constant of the program
  };
  session::Session& adopt(Adopted adopted);

  /// Takes over a state; a model that is not compiled yet does so when it is. updates: that it comes from; nothing: as
  /// the state says. Throws E0706, E0708; then it keeps what it has.
  void goOnFrom(const files::TrainedState& state, std::optional<int64_t> updates = std::nullopt);
  /// What a training run goes on from, of the current program. weights: the model's own, in step with the devices. What
  /// it does not hold in memory it reads from the devices: the model stays as it is until it is written. Throws E0705.
  files::Checkpoint checkpoint(const std::map<std::string, at::Tensor>& weights);
  /// One file by the first process; where each process has its own stages' part of the model alone, all write their
  /// parts. All processes call it. Throws as files::writeCheckpoint and writeParts. Returns: its path.
  std::string writeCheckpoint(const std::string& folder, const files::Checkpoint& checkpoint, int64_t keep);
  /// Throws E0501, E0712 where a part is damaged or missing: each of the processes that have parts of the model looks
  /// at a part of it. Where they have a program all call this, and all throw.
  void requireWhole(const files::Checkpoint& checkpoint);
  /// Weights to the module's tensors and to the devices; those on the meta device are read when a program needs them.
  /// Requires: they fit.
  void takeWeights(const session::StoredTensors& weights);

  /// What a front end puts into a file beside the program, and what it leaves out.
  struct Saving {
    std::string version;            // of the package that writes
    std::string options;            // see ProgramFile
    std::string metadata;           // see ProgramFile
    std::string form, result_form;  // see ProgramFile
    bool with_model = true;         // the weights and the optimizer's state
    bool with_random_state = true;
    /// What ProgramFile::objects holds. They may name the tensors of the file, which are given, instead of holding
    /// their memory. Not called without the model.
    std::function<std::string(const std::vector<modules::NamedTensor>&)> objects = {};
  };
  /// Writes a file of the current program that goes on from here, with the newest weights. Missing folders are made.
  /// Of processes that hold stages all call it, and the first one writes; where each has its own stages' part of the
  /// model alone, each writes that beside the file (ProgramFile::parts). Throws E0705, E0712, in all processes where
  /// one cannot write.
  void save(const std::string& path, Saving saving);
  /// Goes on from the state that a file, or the parts beside it, hold of the optimizer and of the random stream. A
  /// model that is not compiled yet does so when it is. updates: as goOnFrom(). Requires: a program is the file's.
  void resume(const files::ProgramFile& file, const files::Checkpoint* parts = nullptr,
              std::optional<int64_t> updates = std::nullopt);
  /// The next `steps` calls go into this file, action by action, and with them all other events of the process; what
  /// was traced before ends. Throws E0708, E0712. Source: ours.
  void trace(const std::string& path, int64_t steps);

  /// Before a call: warns of changes that have no effect on the compiled program.
  void warnOfChanges();
  /// The front end has put tensors of other shapes into the module: warnOfChanges() names none of them.
  void noteTensors();
  /// A warning that later ones with the same text do not repeat.
  void warnOnce(const std::string& text);

  void setInterrupt(std::function<bool()> poll) { poll_ = std::move(poll); }

 protected:
  /// A compiled program, and the tensors that its session copies from and to.
  struct ModelProgram {
    std::string form;  // of the arguments
    ModuleSource::Captured captured;
    std::vector<Type> inputs;
    bool is_final = false;
    compile::ProgramOptions options;
    std::vector<modules::NamedTensor> tensors;
    std::unique_ptr<session::Session> session;
    std::optional<report::Profile> profile;
    /// Of the file that PVTI_OPTIONS asks for, and of trace_; nothing where nobody traces.
    std::optional<report::Timeline> of_process, of_trace;
  };

  ModuleSource& source() const { return *source_; }
  optimizer::OptimizerSource* optimizer() const { return optimizer_.source(); }
  /// The same into these tensors, by name.
  void takeWeights(const session::StoredTensors& weights, const std::vector<modules::NamedTensor>& tensors);
  /// One whose numbers the devices have.
  void useOptimizer(std::shared_ptr<optimizer::OptimizerSource> optimizer) { optimizer_.use(std::move(optimizer)); }
  Sharing& sharing() const { return *sharing_; }
  const ModelProgram* program() const { return program_.get(); }
  const Rules& rules() const { return rules_; }
  /// Around what reads or writes the module's tensors, or captures; a training model's own calls have it.
  Turns::Turn moduleTurn();
  /// This model is the one that trains the module. Throws E0709.
  void claimTraining();

 private:
  /// A training model elsewhere whose weights are this module's too.
  struct Followed {
    std::weak_ptr<Model> model;
    std::shared_ptr<Sharing> sharing;
    int64_t uploaded_version = -1;
  };

  /// The model has devices for its current program, and others see that. Throws E0402, E0602.
  void takeDevices();
  void releaseDevices();
  /// While it lives, a step is under way.
  class Step;
  /// Adds the program's last call to what is traced.
  void noteCall();
  const char* trackName() const { return rules_.training ? "training" : "inference"; }
  void endTrace();
  Turns::Turn turnOf(Sharing& other) const;
  /// Keeps the models that train this one's tensors elsewhere from writing them.
  std::vector<Turns::Turn> turnsOfFollowed() const;
  /// A forked child has no devices to copy from.
  void pullBeforeTheEnd();
  void follow();
  /// Do live trainings of other modules share tensors with this one, as far as follow() has seen?
  bool sharesWithTrainings() const;
  /// Before a step: what other trainings have changed of shared tensors, to the devices.
  void followTrainings();
  /// Was the module written by a model that trains it since it was uploaded?
  bool isBehind() const;
  void noteUpload();
  /// The current program for its optimizer. Requires: there is one.
  optimizer::OptimizerSync::Compiled compiledProgram() const;
  void uploadWeights();
  /// A checkpoint that was read before there was a program counts from this one on.
  void takeAwaited(session::Session& session);
  /// The program that was compiled for inputs of this kind, or null, and the inputs in its order.
  struct Found {
    std::shared_ptr<ModelProgram> program;
    std::vector<at::Tensor> inputs;
  };
  /// Throws E0704 for arguments that are built otherwise than those of the programs there are.
  Found find(const std::vector<at::Tensor>& inputs, const std::string& form) const;
  /// Compiles a program and makes it the current one.
  void add(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// Makes a program the current one, which goes on where the one before it stopped. Returns: whether it is another.
  bool use(const std::shared_ptr<ModelProgram>& next);
  /// Pulls from those who train the module, and keeps them from training it meanwhile.
  std::vector<Turns::Turn> claimModule(const std::vector<modules::NamedTensor>& tensors);
  /// Gives tensors on the meta device memory, and calls fill(tensor) for each. If one fails, all are without it again.
  static void fillAll(const std::vector<modules::NamedTensor>& needed,
                      const std::function<void(const modules::NamedTensor&)>& fill);
  /// For sessions of the tensors.
  compile::MetaTensors metaOf(const std::vector<modules::NamedTensor>& tensors);
  /// A program that nothing was compiled for yet. Refuses the source's options.
  std::shared_ptr<ModelProgram> newProgram();
  std::shared_ptr<ModelProgram> compileProgram(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// Between the module's tensors and a program's. A module may have put other tensors in the place of those that it
  /// was compiled with: their values are what counts.
  void download(ModelProgram& program);
  void upload(ModelProgram& program);
  void noteTensorsOf(ModelProgram& program);
  /// The program takes over the tensors that the module has now under the names that the program knows. keeps_values:
  /// they get the devices' values. Throws E0704 for a name that is gone or has another shape; then nothing has changed.
  void followNames(ModelProgram& program, bool keeps_values);
  /// Tensors of the module, as an optimizer may know them: behind parameters that had their names before.
  std::vector<modules::NamedTensor> withFormer(const std::vector<modules::NamedTensor>& tensors) const;
  void noteFormer(const std::vector<modules::NamedTensor>& tensors);

  const std::unique_ptr<ModuleSource> source_;
  const Rules rules_;
  const std::shared_ptr<Sharing> sharing_;
  Turns own_turns_;  // for an inference model
  optimizer::OptimizerSync optimizer_;
  std::vector<std::shared_ptr<ModelProgram>> programs_;
  std::shared_ptr<ModelProgram> program_;       // the program that the last call ran
  std::vector<modules::NamedTensor> former_;    // parameters that programs were compiled with
  std::optional<files::TrainedState> awaited_;  // a checkpoint's state, for the first program
  std::shared_ptr<TraceFile> trace_;            // null: no trace was asked for
  int64_t traced_calls_left_ = 0;
  std::set<std::string> warned_;
  std::function<bool()> poll_;
  Fill fill_;                // contents for tensors on the meta device
  bool had_meta_ = false;    // there were some
  bool has_filled_ = false;  // and some have contents by now
  std::atomic<bool> is_compiled_ = false;
  std::atomic<bool> attached_ = false;
  std::unique_ptr<registry::Attachment> attachment_;  // null: the model has no devices
  session::DeviceUse device_use_;                     // their use while attached
  std::vector<int64_t> busy_ns_;                      // by device, in the last step
  std::atomic<bool> stale_ = false;                   // the device is newer than the module
  int64_t uploaded_version_ = 0;
  std::vector<Followed> followed_;
  std::optional<uint64_t> generation_;  // of the source, when followed_ was looked at
};

/// The tensors of a model that is in parts beside a program's file, on the meta device.
std::vector<modules::NamedTensor> tensorsOfParts(const exe::Executable& executable, const files::Checkpoint& parts);

}  // namespace abele::model
