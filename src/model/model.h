// A user's model: its compiled programs, one per kind of input, whose weights are newest, its optimizer, its files.
// Behind abele::CompiledModel (api/model.cc).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "abele/model.h"
#include "base/turns.h"
#include "model/access.h"
#include "model/forms.h"
#include "model/program_file.h"
#include "session/profile.h"
#include "session/session.h"

namespace abele::host {

class Model;

/// What all models of one module share.
struct Sharing {
  Turns turns;  // of the training model, and of whoever reads or writes the module's tensors; guards what follows
  Model* trainer = nullptr;  // the live training model
  int64_t host_version = 0;  // counts copies from a device into the module
};
/// That of a module, alive while a model of the module is; null: one of its own.
std::shared_ptr<Sharing> sharingOf(const torch::nn::Module* module);

/// Source: spec executor.md sections 6 to 8. Threads: whoever has a turn of turns(), but where it says otherwise.
class Model {
 public:
  /// optimizer: of a training model; null for inference. line: where the program wrapped the model.
  Model(torch::nn::Module* module, detail::StructuredForward forward, const Options& options,
        const optim::Optimizer* optimizer, std::string line = {});
  /// From a file: a compiled optimizer goes on with its own values.
  Model(const std::string& path, torch::nn::Module* module, const Options& options, const optim::Optimizer* optimizer);
  /// Waits for other threads that copy its weights.
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// What calls of this model take before anything else. Threads: any.
  Turns& turns() { return options_.training ? sharing_->turns : own_turns_; }

  /// Makes the program for inputs of this kind the current one; compiles it where there is none.
  void compile(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// form: of the arguments, as detail::Flat has it.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// What forward returned in the last call.
  const std::string& resultForm() const { return program_->result_form; }
  void destroy();

  /// The session of the current program. Throws E0705 naming the call where nothing is compiled.
  Session& compiled(const char* call);
  /// Threads: any.
  bool isCompiled() const { return is_compiled_; }
  /// How many programs there are, one for each kind of input.
  size_t numPrograms() const { return programs_.size(); }

  void download();
  void upload();
  bool pullIfStale();
  void uploadBuffers();
  std::map<std::string, at::Tensor> stateDict();
  void loadStateDict(const std::map<std::string, at::Tensor>& state);

  /// Threads: any.
  bool isAttached() const { return attached_; }
  void attach();
  void detach();

  void save(const std::string& path);
  /// Goes on from a file. Requires: nothing was compiled.
  void load(const std::string& path);

  void setOptimizer(const optim::Optimizer& optimizer);
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  void group(const std::string& parameter, CommGroupType type, int64_t shards, VariableRetrievalMode mode);

  /// verify.cc
  abele::Verification verify(const std::vector<detail::Flat>& batches);
  int64_t cycles();
  MemoryReport memoryReport() { return publicMemory(compiled("memoryReport()").memoryReport(), options_); }
  std::string report() { return reportText(compiled("report()").report()); }
  std::string graphText();
  std::string planText();
  std::string executableText();
  /// Throws E0708 where this is no state of a random stream.
  void setRngState(const at::Tensor& state);
  void setInterrupt(std::function<bool()> poll) { poll_ = std::move(poll); }
  /// Threads: any.
  const Options& options() const { return user_options_; }
  const torch::nn::Module* module() const { return module_; }

 private:
  /// A compiled program, and the tensors that its session copies from and to.
  struct ModelProgram {
    std::string form, result_form;  // of arguments and results
    std::vector<Type> inputs;
    bool is_loaded = false;  // from a file: there is no forward to compile another one
    std::vector<NamedTensor> tensors;
    std::unique_ptr<Session> session;
    std::optional<Profile> profile;
  };

  /// Around what reads or writes the module's tensors, or captures; a training model's own calls have it.
  Turns::Turn moduleTurn();
  void requireDevice() const;
  void claimTraining();
  void pullFromTrainer();
  /// A forked child has no devices to copy from.
  void pullBeforeTheEnd();
  /// The program that was compiled for inputs of this kind, or null, and the inputs in its order.
  struct Found {
    ModelProgram* program = nullptr;
    std::vector<at::Tensor> inputs;
  };
  /// Throws E0704 for arguments that are built otherwise than those of the programs there are.
  Found find(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// Compiles a program and makes it the current one.
  void add(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// Makes a program the current one, which goes on where the one before it stopped.
  void use(ModelProgram& next);
  void startProfile(ModelProgram& program) const;
  std::unique_ptr<ModelProgram> compileProgram(const std::vector<at::Tensor>& inputs, const std::string& form);
  /// The file's weights into the module's tensors of the same names; without a module they are the model's own.
  std::vector<NamedTensor> takeWeights(const ProgramFile& file);
  std::vector<NamedTensor> moduleTensors() const;

  const Options user_options_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  torch::nn::Module* module_;
  std::shared_ptr<const void> owner_;
  detail::StructuredForward forward_;
  std::string line_;  // "train.cpp:88"
  ProgramOptions options_;
  std::shared_ptr<Sharing> sharing_;
  Turns own_turns_;  // of an inference model
  std::vector<std::unique_ptr<ModelProgram>> programs_;
  ModelProgram* program_ = nullptr;  // of the last call
  std::function<bool()> poll_;
  std::atomic<bool> is_compiled_ = false;
  std::atomic<bool> attached_ = false;
  bool stale_ = false;  // the device is newer than the module
  int64_t uploaded_version_ = 0;
};

}  // namespace abele::host
