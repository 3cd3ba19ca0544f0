// The model of a C++ program: a Model of a torch::nn::Module, with options and an optimizer of the public API.
// abele::CompiledModel (api/model.cc) uses it.
#pragma once

#include <latch>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "abele/checkpoint.h"
#include "abele/model.h"
#include "base/fork.h"
#include "calls/forms.h"
#include "compile/compiled_program.h"
#include "files/checkpoint.h"
#include "files/program_file.h"
#include "model/model.h"
#include "modules/module.h"
#include "report/model_report.h"

namespace abele::model {

/// The Sharing that all models of a module have in common. Returns a new one if module is null.
std::shared_ptr<Sharing> sharingOf(const torch::nn::Module* module);

class LibTorchModule;

/// Gives threads access to a model while they copy its weights for models of other modules. Its destructor waits until
/// they have finished, because the module may not exist afterwards.
class LentModel {
 public:
  explicit LentModel(Model& model);
  ~LentModel();
  LentModel(const LentModel&) = delete;
  LentModel& operator=(const LentModel&) = delete;
  std::weak_ptr<Model> model() const { return model_; }

 private:
  const Home home_;  // a forked child has no such threads
  const std::shared_ptr<std::latch> returned_;
  std::shared_ptr<Model> model_;
};

/// Threads: see Model.
class LibTorchModel : public Model {
 public:
  /// optimizer: for a training model; null for inference. line: where the program wrapped the model.
  LibTorchModel(torch::nn::Module* module, detail::StructuredForward forward, const Options& options,
                const optim::Optimizer* optimizer, std::string line = {});
  /// Loads from a file. A compiled optimizer keeps its own values. options: uses those that apply at run time, and
  /// warns about the others; null: uses the file's options only.
  LibTorchModel(const std::string& path, torch::nn::Module* module, const Options* options,
                const optim::Optimizer* optimizer);

  /// Model::run, then the update of an optimizer on the host.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::string& form);
  void uploadBuffers();
  std::map<std::string, at::Tensor> stateDict();
  void loadStateDict(const std::map<std::string, at::Tensor>& state);

  /// Model::loadWeights for the module's tensors. Throws E0705 for a loaded model without a module.
  void loadWeights(const std::shared_ptr<const files::WeightFiles>& files);
  /// Draws the first values of the module's tensors and uploads them. Tensors on the meta device are drawn when a
  /// program needs them. Throws E0705, E0708.
  void initWeights(uint64_t seed, InitModule own);

  void save(const std::string& path, const SaveOptions& what);
  /// Resumes from a file. Requires: nothing was compiled.
  void load(const std::string& path);

  files::Checkpoint checkpoint();
  /// Throws E0706, E0708, without any change.
  void goOnFrom(const files::Checkpoint& checkpoint);

  void setOptimizer(const optim::Optimizer& optimizer);
  const optim::Optimizer& optimizer() const;
  /// The session, for a call that needs the devices' optimizer state. Throws E0706 if an optimizer on the host updates
  /// the weights; E0705.
  session::Session& updating(const char* call);
  void group(const std::string& parameter, CommGroupType type, int64_t shards, VariableRetrievalMode mode);

  /// In verify.cc.
  abele::Verification verify(const std::vector<detail::Flat>& batches);
  int64_t cycles();
  MemoryReport memoryReport();
  std::string report() { return report::reportText(compiled("report()").report()); }
  std::string graphText();
  std::string planText();
  std::string executableText();
  /// Throws E0708 for a tensor that is not the state of a random stream.
  void setRngState(const at::Tensor& state);
  /// Threads: any.
  const Options& options() const { return user_options_; }
  const torch::nn::Module* module() const;
  /// The module whose parameters an optimizer of LibTorch has. Throws E0706 for a model without one.
  const torch::nn::Module& moduleOfOptimizer() const;

 private:
  /// A file in memory and its program.
  struct Saved {
    std::string path;
    files::ProgramFile file;
    compile::CompiledProgram program;
  };

  LibTorchModel(LibTorchModule* own, const Options& options, const optim::Optimizer* optimizer);  // takes `own`
  LibTorchModel(Saved saved, torch::nn::Module* module, const Options* options, const optim::Optimizer* optimizer);
  /// Throws E0712, also for a program of the other kind (training or inference); E0501.
  static Saved read(const std::string& path, bool training);
  /// The options of the file. The user's options replace those that apply at run time.
  static Options optionsOf(const Saved& saved, const Options* chosen);
  void load(Saved saved);
  LibTorchModule& own() const;
  /// Whether the optimizer updates the weights on the host.
  bool isOnHost() const { return Model::optimizer() && optimizer().step_on_host; }
  void requireUpdatesOfDevices(const char* call) const;
  /// The newest values. Tensors of other processes stay on the meta device.
  std::map<std::string, at::Tensor> tensorsByName();
  /// Throws E0708 if loadStateDict() cannot take this state.
  void requireFits(const session::StoredTensors& state);
  /// The tensors of a model that is stored in parts beside a file. Those on the meta device are read when the program
  /// needs them. Throws E0501, E0708, E0712.
  std::vector<modules::NamedTensor> takeParts(const files::Checkpoint& parts, const exe::Executable& executable);
  /// The tensors for a file's program: the module's, or without a module the file's own. Throws E0712 if the module
  /// does not fit.
  std::vector<modules::NamedTensor> tensorsFor(const files::ProgramFile& file);
  /// Copies the file's weights into the module's tensors of the same names, and uploads them. Requires: they fit.
  void takeWeights(const files::ProgramFile& file);

  Options user_options_;
  LentModel lent_;  // the last member, so that it ends first
};

}  // namespace abele::model
