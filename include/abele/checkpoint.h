// For users of the library: stop a training run at any moment and resume it later, with the numbers of a run that never
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
  int64_t keep = 3;  // how many of the last steps stay; older files are removed. 0: all stay
  std::map<std::string, std::string> notes = {};  // the caller's own; loadCheckpoint returns them
};

struct Resumed {
  int64_t step = 0;
  std::map<std::string, std::string> notes;
  std::string path;
};

/// Writes weights, the optimizer's state and numbers, the loss scale, the random state and the loader's position into
/// one file of the folder, in the safetensors format, with a checksum of each tensor. After a crash of the process or
/// the machine the file is complete or missing. All processes call this, and the first one writes. If each
/// has only the weights of its own stages (modules on the meta device), each writes a file with its part, and
/// the first one also an index. step: the caller's count; a checkpoint of the same step is replaced. Returns: the
/// path of the file or the index.   Throws: E0705 before compile, E0702 for a negative step or keep, E0712, in all
/// processes that write if one cannot.
ABELE_API std::string saveCheckpoint(const std::string& folder, TrainingModel& model, int64_t step,
                                     const DataLoader* loader = nullptr, const CheckpointOptions& options = {});

/// Resumes from the folder's newest checkpoint, or from that of `step`. A model that is not compiled yet takes the
/// optimizer's and the random state at its first compilation; weights go into the module at once. The loader's next
/// batch is the one that would have followed. Returns nothing if the folder has no checkpoint.
/// Throws: E0501 for a damaged file, E0708 for one of another model, E0706 for another optimizer; the model does not
/// change then. E0712 if `step` is given and missing.
ABELE_API std::optional<Resumed> loadCheckpoint(const std::string& folder, TrainingModel& model,
                                                DataLoader* loader = nullptr, std::optional<int64_t> step = {});

/// Tensors by name in a file of the safetensors format. Throws: E0712, loading also E0501.
ABELE_API void saveTensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors);
ABELE_API std::map<std::string, at::Tensor> loadTensors(const std::string& path);

struct LoadWeightsOptions {
  bool convert = false;  // convert tensors of another element type instead of refusing them
};
/// Parameters and buffers of the module from a safetensors file, an index file of several
/// (model.safetensors.index.json), or a folder with either. Verifies checksums first. Of tensors on the meta
/// device it reads those that this process's devices need, when the model is compiled. Throws: E0708 for files of
/// another model, E0501 for damage, E0712; nothing has changed then.
ABELE_API void loadWeights(const std::string& path, CompiledModel& model, const LoadWeightsOptions& options = {});
/// Writes them into model.safetensors of the folder. If several processes hold stages all call this, each writes a
/// file with its part, and the first one also the index. Throws: E0712, in all processes if one cannot write.
ABELE_API void saveWeights(const std::string& folder, CompiledModel& model);

/// Puts the parameters and buffers of a module on the meta device: they have shapes, and no memory any more. Optimizers
/// and members that hold them hold the same tensors as before. torch::nn::Module::to() cannot do this. Called for each
/// submodule as soon as it is made, it keeps all but one of them out of memory. Requires: no model of the module is
/// compiled. Throws: E0105 for tensors that are not dense.
ABELE_API void toMeta(torch::nn::Module& module);

/// Gives a module's own parameters and buffers their first values. Returns false for a module that it does not know.
using InitModule = std::function<bool(torch::nn::Module&)>;
/// Draws the weights of the model's module under this seed, as constructors do: children first, in the order in
/// which they were registered; of torch::nn's modules by their reset_parameters(), of others by `own`, which is asked
/// first. A module on the meta device is drawn when the model is compiled: each process draws all tensors, a module at
/// a time, and keeps what its devices have. torch's random numbers stay where they are. The numbers are
/// those of the constructors under torch::manual_seed(seed), if each module draws when it is made.
///   abele::initWeights(model, 7, [](torch::nn::Module& module) {
///     auto* mine = module.as<Mine>();
///     if (mine) mine->reset_parameters();
///     return mine != nullptr;
///   });
/// Throws: E0708 for a module that has parameters or buffers of its own, and that neither knows; of a module on the
/// meta device the first call throws it. E0705 for a loaded model without a module.
ABELE_API void initWeights(CompiledModel& model, uint64_t seed, InitModule own = {});

}  // namespace abele
