// For users of the library: stop a training run at any moment, resume it later, and get the numbers of a run that never
// stopped.
//
//   auto resumed = abele::loadCheckpoint("run", model, &loader);
//   int64_t step = resumed ? resumed->step : 0;
//   for (auto epoch = loader.position().pass; epoch < epochs; ++epoch)
//     for (const auto& batch : loader) {
//       model(batch);
//       if (++step % 100 == 0) abele::saveCheckpoint("run", model, step, &loader);
//     }
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "abele/data_loader.h"
#include "abele/export.h"
#include "abele/model.h"

namespace torch::nn {
class Module;
}

namespace abele {

struct CheckpointOptions {
  int64_t keep = 3;                               // number of checkpoints to keep; older files are removed. 0 keeps all
  std::map<std::string, std::string> notes = {};  // the caller's own texts; loadCheckpoint returns them
};

struct Resumed {
  int64_t step = 0;
  std::map<std::string, std::string> notes;
  std::string path;
};

/// Writes one file in the safetensors format, with a checksum for each tensor: the weights, the optimizer's state and
/// numbers, the loss scale, the random state and the loader's position. After a crash of the process or the machine the
/// file is complete or missing. All processes call this, and the first one writes. If each process holds only the
/// weights of its own stages (modules on the meta device), each writes a file with its part, and the first one also
/// writes an index. step: the caller's count; a checkpoint of the same step is replaced. Returns: the path of the file
/// or of the index.   Throws: E0705 before compile; E0702 for a negative step or keep; E0712 if a file cannot be
/// written, in every process that writes.
ABELE_API std::string saveCheckpoint(const std::string& folder, TrainingModel& model, int64_t step,
                                     const DataLoader* loader = nullptr, const CheckpointOptions& options = {});

/// Resumes from the newest checkpoint in the folder, or from the checkpoint of `step`. Weights go into the module at
/// once. A model that is not compiled yet takes the optimizer's state and the random state when it first compiles. The
/// loader continues with the next batch. Returns nothing if the folder has no checkpoint.
/// Throws, without a change to the model: E0501 for a damaged file, E0708 for a checkpoint of another model, E0706 for
/// another optimizer. Throws E0712 if `step` is given and missing.
ABELE_API std::optional<Resumed> loadCheckpoint(const std::string& folder, TrainingModel& model,
                                                DataLoader* loader = nullptr, std::optional<int64_t> step = {});

/// Save and load tensors by name in the safetensors format. Throws: E0712; loading also E0501.
ABELE_API void saveTensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors);
ABELE_API std::map<std::string, at::Tensor> loadTensors(const std::string& path);

struct LoadWeightsOptions {
  bool convert = false;  // convert tensors of another element type instead of refusing them
};
/// Loads the module's parameters and buffers from a safetensors file, from the index of several files
/// (model.safetensors.index.json), or from a folder with either. Verifies checksums first. Tensors on the meta device
/// are read when the model is compiled, and only those that this process's devices need. Throws, without any change:
/// E0708 for files of another model, E0501 for damage, E0712.
ABELE_API void loadWeights(const std::string& path, CompiledModel& model, const LoadWeightsOptions& options = {});
/// Writes the parameters and buffers into model.safetensors in the folder. If several processes hold stages, all call
/// this: each writes a file with its part, and the first one also writes the index. Throws E0712, in all processes if
/// one of them cannot write.
ABELE_API void saveWeights(const std::string& folder, CompiledModel& model);

/// Moves a module's parameters and buffers to the meta device: they keep their shapes and free their memory. Optimizers
/// and members keep referring to the same tensors; after torch::nn::Module::to() they would not. If you call this for
/// each submodule right after its construction, at most one submodule is in memory at a time.
/// Requires: no model of the module is compiled. Throws: E0105 for tensors that are not dense.
ABELE_API void toMeta(torch::nn::Module& module);

/// Initialises a module's own parameters and buffers. Returns false for a module that it does not know.
using InitModule = std::function<bool(torch::nn::Module&)>;
/// Initialises the weights of the model's module under this seed in the order of constructors: children first, as they
/// were registered. For each module it calls `own` first. Modules of torch::nn that `own` does not know call their
/// reset_parameters(). A module on the meta device is initialised when the model is compiled: each process draws all
/// tensors, one module at a time, and keeps those that its devices hold. torch's own random state does not change. The
/// numbers equal those of the constructors under torch::manual_seed(seed), if each module draws in its constructor.
///   abele::initWeights(model, 7, [](torch::nn::Module& module) {
///     auto* mine = module.as<Mine>();
///     if (mine) mine->reset_parameters();
///     return mine != nullptr;
///   });
/// Throws: E0708 for a module with its own parameters or buffers that neither `own` nor torch::nn initialises; if it is
/// on the meta device, the first call throws it. E0705 for a loaded model without a module.
ABELE_API void initWeights(CompiledModel& model, uint64_t seed, InitModule own = {});

}  // namespace abele
