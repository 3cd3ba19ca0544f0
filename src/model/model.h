// A user's model: its compiled programs, one for each kind of input. It keeps track of which weights are newest. The
// front ends of both languages use it: libtorch_model.h for C++, bind/model.cc for Python.
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
  Turns turns;               // the lock for reading and writing the module's tensors; also guards the members below
  Model* trainer = nullptr;  // the live training model
  std::atomic<int64_t> host_version = 0;  // number of copies from a device into the module; models of other modules
                                          // read it
};

/// Source: spec executor.md sections 6 to 8. Threads: the thread that holds turns(), unless stated otherwise.
class Model {
 public:
  struct Rules {
    bool training = false;
    ConnectionType connection = ConnectionType::kAlways;
    calls::Policy policy = {};
    int64_t recompile_limit = 64;  // a warning follows if the model has more programs than this
  };
  /// sharing: null if no models but those of ModuleSource::trainers() share the module.
  Model(std::unique_ptr<ModuleSource> source, Rules rules, std::shared_ptr<Sharing> sharing = nullptr);
  /// Waits for other threads that copy this model's weights.
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// The lock that each call of this model takes first. Threads: any.
  Turns& turns() { return rules_.training ? sharing_->turns : own_turns_; }

  /// Whether choose() and refresh() would do nothing. Cheap.
  bool isReady(const std::vector<at::Tensor>& inputs, const std::string& form) const;
  /// Makes the program for inputs of this kind the current one; compiles it if there is none. Weights, optimizer
  /// state and random numbers move from the previous program. Returns: whether the program has changed.
  bool choose(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// Puts the model on its devices, with the newest weights. Requires: it is compiled.
  void refresh();
  /// Runs a call of the current program. given: the caller's tensors; inputs: those that the program takes, in its
  /// order.
  /// Requires: refresh(), beginStep().
  std::vector<at::Tensor> step(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs);
  /// The optimizer's work before and after a step.
  void beginStep();
  void endStep();
  /// For optimizers that the devices do not have. Runs step() while the module's parameters have the sums of their
  /// gradients in the last call, then copies the weights to the devices. If step() throws, what it wrote is copied,
  /// too.
  void updateOnHost(const std::function<void()>& step);
  /// Throws E0706 if such an optimizer cannot train with the model's options.
  void requireHostUpdates() const;
  /// Conversions by the rules of the policy. deviceInputs converts the tensors of a call for the devices, and inTypes
  /// converts these to the types of the current program. outcome converts the results of a step for the caller, and
  /// copies what forward wrote into `given`. They throw E0609, E0708.
  std::vector<at::Tensor> deviceInputs(const std::vector<at::Tensor>& given);
  std::vector<at::Tensor> inTypes(std::vector<at::Tensor> inputs) const;
  std::vector<at::Tensor> outcome(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs,
                                  std::vector<at::Tensor> results) const;
  /// An anchor of the last call, converted for the caller. Throws E0705, E0708, E0609.
  at::Tensor anchor(const std::string& short_name);
  /// All steps of a call. form: the form of the arguments, as in detail::Flat.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::string& form);
  void compile(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// The form of what forward returned in the last call.
  const std::string& resultForm() const { return program_->captured.result_form; }
  /// The captured data of the current program; null if nothing is compiled.
  const ModuleSource::Captured* captured() const { return program_ ? &program_->captured : nullptr; }
  void destroy();
  /// Gives up newer weights on the devices, for example because the module's interpreter has ended.
  void forget() { stale_ = false; }

  /// Throws E0702 for a model of the connection type Never, which only compiles.
  void requireDevice() const;
  /// The session of the current program. Throws E0705, which names the call, if nothing is compiled.
  session::Session& compiled(const char* call);
  /// The same, as a shared pointer; null if nothing is compiled.
  std::shared_ptr<session::Session> session() const;
  /// Threads: any.
  bool isCompiled() const { return is_compiled_; }
  /// Number of programs, one for each kind of input.
  size_t numPrograms() const { return programs_.size(); }

  /// Copies the weights to the module. with_state: also copies the state of an optimizer of torch.
  void download(bool with_state = false);
  /// Copies the weights, and the optimizer state that the host has, to the devices.
  void upload();
  bool pullIfStale();
  /// Whether the device has newer weights than the module. Threads: any.
  bool isStale() const { return stale_; }
  /// Copies newer weights of models that train the module into it.
  void pullFromTrainers();

  /// Sets the function that gives tensors on the meta device memory and contents. It is called when a program is
  /// compiled or loaded, for the tensors that this process's devices have.
  using Fill = std::function<void(const std::vector<modules::NamedTensor>& needed)>;
  void fillMetaTensors(Fill fill);
  /// Reads the module's tensors from files and copies them to the devices. Tensors on the meta device are read when a
  /// program needs them. targets: all tensors of the module. Throws E0708 before anything changes; E0501, E0712, after
  /// which some tensors may have changed.
  void loadWeights(const std::shared_ptr<const files::WeightFiles>& files,
                   const std::vector<files::WeightTarget>& targets);
  /// Call before all tensors are read. Throws E0711 if other processes have tensors that are on the meta device here
  /// (or the optimizer's state), E0705 if the module's tensors have not been read yet. what: the request; instead: the
  /// call to use.
  void requireComplete(const char* what, const char* instead);
  /// A copy of the newest value of a tensor of the module. All processes that hold stages call it in the same order,
  /// and all get the value. Throws E0708 for another name.
  at::Tensor weight(const std::string& name);
  /// Writes the newest weights into files of the folder, which it creates: one file, or, if processes hold stages, one
  /// per process with its part, and an index. All processes call it. left_out: names of tensors outside the
  /// module's state. Throws E0712, in all processes if one cannot write.
  void saveWeights(const std::string& folder, const std::vector<std::string>& left_out = {});
  /// Sets the present optimizer. Throws E0706 for numbers that the compiled program cannot take.
  void setOptimizer(std::shared_ptr<optimizer::OptimizerSource> optimizer);
  /// Sends the optimizer's present numbers to the devices, if there are any.
  void sendOptimizer();
  /// The optimizer's present spec; an empty one without an optimizer.
  compile::OptimizerSpec optimizerSpec();
  /// Copies the devices' optimizer state into the optimizer, if that keeps a state.
  void downloadOptimizerState();
  /// The devices' optimizer state, one tensor after the other, also from other processes. All processes that hold
  /// stages read the same tensors in the same order. Empty if nothing is compiled. Keeps the program alive.
  session::StoredTensors optimizerState() const;
  /// Number of updates that the devices' optimizer state includes.
  int64_t updates() const { return optimizer_.updates(); }

  /// Threads: any.
  bool isAttached() const { return attached_; }
  /// Attaches devices (registry/attachment.h) and copies the weights to them. Throws E0402, E0602, E0702, E0705.
  void attach();
  void detach();

  /// Uses a program that was compiled before instead of compiling one. Throws E0712. Requires: nothing is compiled.
  struct Adopted {
    compile::CompiledProgram program;
    std::string form;
    ModuleSource::Captured captured;
    std::vector<modules::NamedTensor> tensors;  // its weights
    bool is_final = false;                      // there is no forward to compile another program
    bool keeps_optimizer = false;               // keeps the numbers of the saved optimizer
    bool numbers_vary = false;                  // no number of the optimizer is a constant of the program
    bool may_compile = false;                   // instead of E0712 if operators were divided for another machine
  };
  /// Returns false if the program is to be compiled; nothing has changed then.
  bool adopt(Adopted adopted);

  /// Continues from a state. A model that is not compiled yet takes the state when it is compiled. updates: number of
  /// updates before the state; empty: the state's step count. Throws E0706, E0708, without any change.
  void goOnFrom(const files::TrainedState& state, std::optional<int64_t> updates = std::nullopt);
  /// A checkpoint of the current program. weights: the model's tensors, equal to the devices'. Other parts are read
  /// from the devices when the checkpoint is written; until then the model must not change. Throws E0705.
  files::Checkpoint checkpoint(const std::map<std::string, at::Tensor>& weights);
  /// All processes call it. The first one writes a file; if each process has only the part of its own stages, each
  /// writes its part. Returns: the path of the checkpoint. Throws the errors of files::writeCheckpoint and writeParts.
  std::string writeCheckpoint(const std::string& folder, const files::Checkpoint& checkpoint, int64_t keep);
  /// Checks a checkpoint. If several processes have parts of the model, they share the check; all call it if there is a
  /// program, and all throw if one finds a fault. Throws E0501 for a damaged part, E0712 for a missing one.
  void requireWhole(const files::Checkpoint& checkpoint);
  /// Copies weights into the module's tensors and to the devices. Tensors on the meta device are read when a program
  /// needs them. Requires: names, shapes and types fit.
  void takeWeights(const session::StoredTensors& weights);

  /// The parts of a file that a front end provides, and whether the model is saved.
  struct Saving {
    std::string version;            // version of the package that writes
    std::string options;            // see ProgramFile
    std::string metadata;           // see ProgramFile
    std::string form, result_form;  // see ProgramFile
    bool with_model = true;         // the weights and the optimizer's state
    bool with_random_state = true;
    /// Returns ProgramFile::objects. The objects may refer to the file's tensors, which are passed, instead of
    /// containing them. Not called without the model.
    std::function<std::string(const std::vector<modules::NamedTensor>&)> objects = {};
  };
  /// Writes a file of the current program with the newest weights, from which a run can continue. Makes missing
  /// folders. All processes that hold stages call it, and the first one writes the file. If each has only the part of
  /// its own stages, each writes its part beside the file (ProgramFile::parts). Throws E0705; E0712 in all processes if
  /// one cannot write.
  void save(const std::string& path, Saving saving);
  /// Continues from the optimizer state and the random state in a file, or in the parts beside it. A model that is not
  /// compiled yet takes them when it is compiled. updates: as in goOnFrom(). Requires: a program of the model came from
  /// the file.
  void resume(const files::ProgramFile& file, const files::Checkpoint* parts = nullptr,
              std::optional<int64_t> updates = std::nullopt);
  /// Records the next `steps` calls in this file, action by action, together with all other events of the process. Ends
  /// an earlier trace. Throws E0708, E0712. Source: ours.
  void trace(const std::string& path, int64_t steps);

  /// Call before a call of the model: warns about changes that have no effect on the compiled program.
  void warnOfChanges();
  /// Accepts the module's present tensors, because the front end itself replaced some by tensors of other shapes:
  /// warnOfChanges() will not name them.
  void noteTensors();
  /// Logs a warning, once for each text.
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
    /// The timelines in the file of PVTI_OPTIONS and in trace_; empty if the file does not exist.
    std::optional<report::Timeline> of_process, of_trace;
  };

  ModuleSource& source() const { return *source_; }
  optimizer::OptimizerSource* optimizer() const { return optimizer_.source(); }
  /// The same for these tensors, by name.
  void takeWeights(const session::StoredTensors& weights, const std::vector<modules::NamedTensor>& tensors);
  /// Sets an optimizer with the numbers that the devices already have.
  void useOptimizer(std::shared_ptr<optimizer::OptimizerSource> optimizer) { optimizer_.use(std::move(optimizer)); }
  Sharing& sharing() const { return *sharing_; }
  const ModelProgram* program() const { return program_.get(); }
  const Rules& rules() const { return rules_; }
  /// The lock around code that captures, or that reads or writes the module's tensors. A training model's calls hold it
  /// already.
  Turns::Turn moduleTurn();
  /// Makes this model the one that trains the module. Throws E0709 if another one does.
  void claimTraining();

 private:
  /// A training model of another module that shares weights with this one.
  struct Followed {
    std::weak_ptr<Model> model;
    std::shared_ptr<Sharing> sharing;
    int64_t uploaded_version = -1;
  };

  /// Attaches devices for the current program; other processes can see them. Throws E0402, E0602.
  void takeDevices();
  void releaseDevices();
  /// Lives while a step runs.
  class Step;
  /// Adds the program's last call to the traces.
  void noteCall();
  const char* trackName() const { return rules_.training ? "training" : "inference"; }
  void endTrace();
  Turns::Turn turnOf(Sharing& other) const;
  /// Locks the models of other modules that train this model's tensors, so that they do not write them.
  std::vector<Turns::Turn> turnsOfFollowed() const;
  /// Copies weights back before the model ends, except in a forked child, which has no devices.
  void pullBeforeTheEnd();
  void follow();
  /// Whether live trainings of other modules shared tensors with this one when this was last checked.
  bool sharesWithTrainings() const;
  /// Call before a step: copies shared tensors that other trainings have changed to the devices.
  void followTrainings();
  /// Whether a model that trains the module has written it since it was uploaded.
  bool isBehind() const;
  void noteUpload();
  /// The data of the current program for the optimizer. Requires: there is a current program.
  optimizer::OptimizerSync::Compiled compiledProgram() const;
  void uploadWeights();
  /// Sets the state of a checkpoint that was read before there was a program.
  void takeAwaited(session::Session& session);
  /// The program that was compiled for inputs of this kind, or null, and the inputs in its order.
  struct Found {
    std::shared_ptr<ModelProgram> program;
    std::vector<at::Tensor> inputs;
  };
  /// Throws E0704 for arguments with another structure than those of the existing programs.
  Found find(const std::vector<at::Tensor>& inputs, const std::string& form) const;
  /// Compiles a program and makes it the current one.
  void add(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// Makes a program the current one; it continues where the previous one stopped. Returns: whether the program has
  /// changed.
  bool use(const std::shared_ptr<ModelProgram>& next);
  /// Copies newer weights from models that train the module, and locks these models meanwhile.
  std::vector<Turns::Turn> claimModule(const std::vector<modules::NamedTensor>& tensors);
  /// Gives tensors on the meta device memory, and calls fill(tensor) for each. If a call fails, takes the memory of all
  /// of them away again.
  static void fillAll(const std::vector<modules::NamedTensor>& needed,
                      const std::function<void(const modules::NamedTensor&)>& fill);
  /// The MetaTensors for a session with these tensors.
  compile::MetaTensors metaOf(const std::vector<modules::NamedTensor>& tensors);
  /// A new program without a compilation. Throws if the source's options are not allowed.
  std::shared_ptr<ModelProgram> newProgram();
  std::shared_ptr<ModelProgram> compileProgram(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// Copies between the module's tensors and a program's. If the module has replaced tensors since it was compiled, the
  /// new tensors are used.
  void download(ModelProgram& program);
  void upload(ModelProgram& program);
  void noteTensorsOf(ModelProgram& program);
  /// Makes the program use the module's present tensors of the same names. keeps_values: gives them the devices'
  /// values. Throws E0704, without any change, for a name that is missing or has another shape.
  void followNames(ModelProgram& program, bool keeps_values);
  /// The module's tensors, after the parameters that had their names before, which an optimizer may still refer to.
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
  bool had_meta_ = false;    // the model had such tensors
  bool has_filled_ = false;  // some of them have contents by now
  std::atomic<bool> is_compiled_ = false;
  std::atomic<bool> attached_ = false;
  std::unique_ptr<registry::Attachment> attachment_;  // null: the model has no devices
  session::DeviceUse device_use_;                     // their use while attached
  std::vector<int64_t> busy_ns_;                      // by device, in the last step
  std::atomic<bool> stale_ = false;                   // the device is newer than the module
  int64_t uploaded_version_ = 0;
  std::vector<Followed> followed_;
  std::optional<uint64_t> generation_;  // the source's generation() when followed_ was last updated
};

/// The tensors, on the meta device, of a model that is stored in parts beside a program's file.
std::vector<modules::NamedTensor> tensorsOfParts(const exe::Executable& executable, const files::Checkpoint& parts);

}  // namespace abele::model
