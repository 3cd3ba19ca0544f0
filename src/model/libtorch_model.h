// A model of a C++ program: a Model of a torch::nn::Module, with options and an optimizer of the public API. Behind
// abele::CompiledModel (api/model.cc).
#pragma once

#include <latch>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "abele/checkpoint.h"
#include "abele/model.h"
#include "base/fork.h"
#include "compile/compiled_program.h"
#include "model/checkpoint.h"
#include "model/forms.h"
#include "model/model.h"
#include "model/program_file.h"

namespace abele::host {

/// That of a module, alive while a model of the module is; null: one of its own.
std::shared_ptr<Sharing> sharingOf(const torch::nn::Module* module);

class LibTorchModule;

/// Lends a model to threads that copy its weights for models of other modules. Its end waits until they have done so:
/// behind it the module may be gone.
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

/// Threads: as Model.
class LibTorchModel : public Model {
 public:
  /// optimizer: of a training model; null for inference. line: where the program wrapped the model.
  LibTorchModel(torch::nn::Module* module, detail::StructuredForward forward, const Options& options,
                const optim::Optimizer* optimizer, std::string line = {});
  /// From a file: a compiled optimizer goes on with its own values. options: those that count at run time do, a warning
  /// names the others; null: all are the file's.
  LibTorchModel(const std::string& path, torch::nn::Module* module, const Options* options,
                const optim::Optimizer* optimizer);

  void uploadBuffers();
  std::map<std::string, at::Tensor> stateDict();
  void loadStateDict(const std::map<std::string, at::Tensor>& state);

  /// As Model::loadWeights, into the module's tensors. Throws E0705 for a loaded model without a module.
  void loadWeights(const std::shared_ptr<const WeightFiles>& files);
  /// The first values of the module's tensors, and to the devices; of those on the meta device when a program needs
  /// them. Throws E0705, E0708.
  void initWeights(uint64_t seed, InitModule own);

  void save(const std::string& path, const SaveOptions& what);
  /// Goes on from a file. Requires: nothing was compiled.
  void load(const std::string& path);

  Checkpoint checkpoint();
  /// Throws E0706, E0708; the model keeps what it has then.
  void goOnFrom(const Checkpoint& checkpoint);

  void setOptimizer(const optim::Optimizer& optimizer);
  const optim::Optimizer& optimizer() const;
  void group(const std::string& parameter, CommGroupType type, int64_t shards, VariableRetrievalMode mode);

  /// verify.cc
  abele::Verification verify(const std::vector<detail::Flat>& batches);
  int64_t cycles();
  MemoryReport memoryReport();
  std::string report() { return reportText(compiled("report()").report()); }
  std::string graphText();
  std::string planText();
  std::string executableText();
  /// Throws E0708 where this is no state of a random stream.
  void setRngState(const at::Tensor& state);
  /// Threads: any.
  const Options& options() const { return user_options_; }
  const torch::nn::Module* module() const;

 private:
  /// A file that was read, and its program.
  struct Saved {
    std::string path;
    ProgramFile file;
    CompiledProgram program;
  };

  LibTorchModel(LibTorchModule* own, const Options& options, const optim::Optimizer* optimizer);  // takes `own`
  LibTorchModel(Saved saved, torch::nn::Module* module, const Options* options, const optim::Optimizer* optimizer);
  /// Throws E0712, E0501; E0712 too for a program of the other kind.
  static Saved read(const std::string& path, bool training);
  /// The options of the file; where somebody chose some, with theirs that count at run time.
  static Options optionsOf(const Saved& saved, const Options* chosen);
  void load(Saved saved);
  LibTorchModule& own() const;
  /// Newest values; tensors of other processes stay on the meta device.
  std::map<std::string, at::Tensor> tensorsByName();
  /// Throws E0708 where loadStateDict() cannot take this.
  void requireFits(const StoredTensors& state);
  /// The same of a model in parts beside a file: those on the meta device are read when the program needs them. Throws
  /// E0501, E0708, E0712.
  std::vector<NamedTensor> takeParts(const Checkpoint& parts, const exe::Executable& executable);
  /// The tensors that a file's program works with: the module's, or without a module the file's own. Throws E0712 where
  /// the module does not fit.
  std::vector<NamedTensor> tensorsFor(const ProgramFile& file);
  /// The file's weights into the module's tensors of the same names, and to the devices. Requires: they fit.
  void takeWeights(const ProgramFile& file);

  Options user_options_;
  LentModel lent_;  // the last member: it ends first
};

}  // namespace abele::host
