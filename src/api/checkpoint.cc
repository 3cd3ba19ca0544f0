// Checkpoints of training models, files of tensors, and tensors in a file.
#include "abele/checkpoint.h"

#include <string_view>
#include <utility>

#include "api/core.h"
#include "base/error.h"
#include "files/checkpoint.h"
#include "files/offload.h"
#include "files/tensor_file.h"
#include "modules/first_weights.h"
#include "modules/module.h"

namespace abele {
namespace {

constexpr std::string_view kNote = "note/";
constexpr const char* kPass = "loader.pass";
constexpr const char* kBatches = "loader.batches";
constexpr const char* kInOrder = "loader.in_order";

/// A number that saveCheckpoint() wrote. Nothing if the text is missing.
std::optional<int64_t> numberOf(const files::Checkpoint& checkpoint, const char* name, const std::string& path) {
  const auto text = checkpoint.texts.find(name);
  if (text == checkpoint.texts.end()) return {};
  const std::optional<int64_t> number = files::countOf(text->second);
  ABELE_REQUIRE(
      number, E0501,
      {.what = "the checkpoint has text in place of a number", .at = path, .found = cat(name, " ", text->second)});
  return number;
}

/// Makes an empty path the current folder, as functions that open files do.
std::string folderOf(const std::string& given) { return given.empty() ? "." : given; }

}  // namespace

std::string saveCheckpoint(const std::string& folder, TrainingModel& model, int64_t step, const DataLoader* loader,
                           const CheckpointOptions& options) {
  const ModelAccess::Call call = ModelAccess::enter(model);  // until the end, because the tensors belong to the model
  files::Checkpoint checkpoint = call->checkpoint();
  checkpoint.step = step;
  for (const auto& [name, text] : options.notes) checkpoint.texts.emplace(cat(kNote, name), text);
  if (loader) {
    checkpoint.texts.emplace(kPass, std::to_string(loader->position().pass));
    checkpoint.texts.emplace(kBatches, std::to_string(loader->position().batches));
    checkpoint.texts.emplace(kInOrder, loader->isInOrder() ? "yes" : "no");
  }
  return call->writeCheckpoint(folderOf(folder), checkpoint, options.keep);
}

std::optional<Resumed> loadCheckpoint(const std::string& folder, TrainingModel& model, DataLoader* loader,
                                      std::optional<int64_t> step) {
  const std::vector<int64_t> steps = files::checkpointSteps(folderOf(folder));
  if (!step && steps.empty()) return {};
  const std::string path = files::checkpointPath(folderOf(folder), step.value_or(steps.empty() ? 0 : steps.back()));
  const files::Checkpoint checkpoint = files::readCheckpoint(path);
  const auto pass = numberOf(checkpoint, kPass, path), batches = numberOf(checkpoint, kBatches, path);
  ABELE_REQUIRE(!loader || (pass && batches), E0712,
                {.what = "the checkpoint has no position of a loader",
                 .at = path,
                 .remedy = "pass no loader, or pass one when you write checkpoints"});
  const auto order = checkpoint.texts.find(kInOrder);
  ABELE_REQUIRE(!loader || order == checkpoint.texts.end() || (order->second == "yes") == loader->isInOrder(), E0712,
                {.what = "the loader takes samples in another order than the checkpoint's loader",
                 .at = path,
                 .found = loader->isInOrder() ? "samples one after the other" : "an order of its own",
                 .expected = order->second == "yes" ? "samples one after the other" : "an order of its own",
                 .remedy = "make the loader with the same arguments as when the checkpoint was written"});
  ModelAccess::enter(model)->goOnFrom(checkpoint);
  if (loader) loader->seek({.pass = *pass, .batches = *batches});
  Resumed resumed{.step = checkpoint.step, .notes = {}, .path = path};
  for (const auto& [name, text] : checkpoint.texts)
    if (name.starts_with(kNote)) resumed.notes.emplace(name.substr(kNote.size()), text);
  return resumed;
}

void saveTensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  files::writeTensorFile(path, {.tensors = tensors, .metadata = {}});
}

std::map<std::string, at::Tensor> loadTensors(const std::string& path) { return files::readTensorFile(path).tensors; }

void loadWeights(const std::string& path, CompiledModel& model, const LoadWeightsOptions& options) {
  ModelAccess::enter(model)->loadWeights(std::make_shared<files::WeightFiles>(path, options.convert));
}

void saveWeights(const std::string& folder, CompiledModel& model) { ModelAccess::enter(model)->saveWeights(folder); }

void toMeta(torch::nn::Module& module) { modules::toMeta(module); }

void offload(torch::nn::Module& module, const std::string& folder) {
  std::vector<at::Tensor> tensors;
  for (const modules::NamedTensor& named : modules::tensorsOf(module)) tensors.push_back(named.tensor);
  files::offload(tensors, folder);
}

void initWeights(CompiledModel& model, uint64_t seed, InitModule own) {
  ModelAccess::enter(model)->initWeights(seed, std::move(own));
}

}  // namespace abele
