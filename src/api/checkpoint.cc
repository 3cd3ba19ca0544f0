// Checkpoints of training models, and files of tensors.
#include "abele/checkpoint.h"

#include <charconv>
#include <string_view>

#include "api/core.h"
#include "base/error.h"
#include "model/checkpoint.h"
#include "model/tensor_file.h"

namespace abele {
namespace {

constexpr std::string_view kNote = "note/";
constexpr const char* kPass = "loader.pass";
constexpr const char* kBatches = "loader.batches";

/// A number that saveCheckpoint() wrote; none: there is no such text.
std::optional<int64_t> numberOf(const host::Checkpoint& checkpoint, const char* name, const std::string& path) {
  const auto text = checkpoint.texts.find(name);
  if (text == checkpoint.texts.end()) return {};
  int64_t number = -1;
  const char* const end = text->second.data() + text->second.size();
  const auto parsed = std::from_chars(text->second.data(), end, number);
  ABELE_REQUIRE(parsed.ec == std::errc() && parsed.ptr == end && number >= 0, E0501,
                {.what = "a checkpoint with a text for a number", .at = path, .found = cat(name, " ", text->second)});
  return number;
}

}  // namespace

std::string saveCheckpoint(const std::string& folder, TrainingModel& model, int64_t step, const DataLoader* loader,
                           const CheckpointOptions& options) {
  const ModelAccess::Call call = ModelAccess::enter(model);  // to the end: the weights are the model's own
  host::Checkpoint checkpoint = call->checkpoint();
  checkpoint.step = step;
  for (const auto& [name, text] : options.notes) checkpoint.texts.emplace(cat(kNote, name), text);
  if (loader) {
    checkpoint.texts.emplace(kPass, std::to_string(loader->position().pass));
    checkpoint.texts.emplace(kBatches, std::to_string(loader->position().batches));
  }
  if (model.options().Distributed().distributed_process_id() != 0) return host::checkpointPath(folder, step);
  return host::writeCheckpoint(folder, checkpoint, options.keep);
}

std::optional<Resumed> loadCheckpoint(const std::string& folder, TrainingModel& model, DataLoader* loader,
                                      std::optional<int64_t> step) {
  const std::vector<int64_t> steps = host::checkpointSteps(folder);
  if (!step && steps.empty()) return {};
  const std::string path = host::checkpointPath(folder, step.value_or(steps.empty() ? 0 : steps.back()));
  const host::Checkpoint checkpoint = host::readCheckpoint(path);
  const auto pass = numberOf(checkpoint, kPass, path), batches = numberOf(checkpoint, kBatches, path);
  ABELE_REQUIRE(!loader || (pass && batches), E0712,
                {.what = "the checkpoint has no position of a loader",
                 .at = path,
                 .remedy = "pass no loader, or write checkpoints with one"});
  ModelAccess::enter(model)->goOnFrom(checkpoint);
  if (loader) loader->seek({.pass = *pass, .batches = *batches});
  Resumed resumed{.step = checkpoint.step, .notes = {}, .path = path};
  for (const auto& [name, text] : checkpoint.texts)
    if (name.starts_with(kNote)) resumed.notes.emplace(name.substr(kNote.size()), text);
  return resumed;
}

void saveTensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  host::writeTensorFile(path, {.tensors = tensors, .metadata = {}});
}

std::map<std::string, at::Tensor> loadTensors(const std::string& path) { return host::readTensorFile(path).tensors; }

}  // namespace abele
