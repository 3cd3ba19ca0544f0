#include "files/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/whole_file.h"
#include "files/tensor_file.h"
#include "files/tensor_set.h"

namespace abele::files {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors", kIndexSuffix = ".safetensors.index.json";
constexpr int kDigits = 10, kPartDigits = 5;
// Prefixes of the tensors' names in the file, by kind.
constexpr std::string_view kWeights = "model/", kOptimizer = "optimizer/", kOther = "other/", kText = "text/";
constexpr const char* kRandom = "random/devices";
constexpr const char* kStepEntry = "abele.step";

/// "step-0000000003"
std::string stem(int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return cat(kPrefix, digits);
}

/// The step in the name of a file or an index; nothing if it has another name.
std::optional<int64_t> stepOf(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  for (const std::string_view suffix : {kIndexSuffix, kSuffix}) {
    if (!name.ends_with(suffix) || name.size() < kPrefix.size() + suffix.size()) continue;
    const auto step = countOf(name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size()));
    if (step && name == cat(stem(*step), suffix)) return step;
  }
  return {};
}

/// The beginning of the names of parts that were written together: "step-0000000003-MARK". Each writing has its own
/// mark, so the parts of an old checkpoint remain until the new one of that step is complete.
std::string partStem(int64_t step, const std::string& mark) { return cat(stem(step), "-", mark); }

/// The step that a file is a part of.
std::optional<int64_t> stepOfPart(std::string_view name) {
  const size_t end = name.find('-', kPrefix.size());
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || end == name.npos) return {};
  const auto step = countOf(name.substr(kPrefix.size(), end - kPrefix.size()));
  return step && name.starts_with(cat(stem(*step), "-")) ? step : std::nullopt;
}

template <class T>
void putAll(std::map<std::string, T>& to, std::string_view prefix, const std::map<std::string, T>& from) {
  for (const auto& [name, value] : from) to.emplace(cat(prefix, name), value);
}

template <class T>
std::map<std::string, T> takeAll(const std::map<std::string, T>& from, std::string_view prefix) {
  std::map<std::string, T> taken;
  for (const auto& [name, value] : from)
    if (name.starts_with(prefix)) taken.emplace(name.substr(prefix.size()), value);
  return taken;
}

void requireCounts(const Checkpoint& checkpoint, int64_t keep) {
  ABELE_REQUIRE(checkpoint.step >= 0 && keep >= 0, E0702,
                {.what = "a negative step of a checkpoint, or a negative number of checkpoints to keep",
                 .found = cat("step ", checkpoint.step, ", keep ", keep),
                 .expected = "0 or more"});
}

/// All tensors of the checkpoint, by their names in the file.
session::StoredTensors tensorsOf(const Checkpoint& checkpoint) {
  session::StoredTensors all;
  putAll(all, kWeights, checkpoint.weights);
  putAll(all, kOptimizer, checkpoint.state.optimizer_state);
  for (const auto& [name, tensor] : checkpoint.tensors) all.emplace(cat(kOther, name), session::stored(tensor));
  if (checkpoint.state.rng_state.defined()) all.emplace(kRandom, session::stored(checkpoint.state.rng_state));
  return all;
}

std::map<std::string, std::string> metadataOf(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> metadata;
  putAll(metadata, kText, checkpoint.texts);
  metadata.emplace(kStepEntry, std::to_string(checkpoint.step));
  return metadata;
}

/// Removes other files: those of this step except the parts with this mark (without a mark: except the one file), and
/// those of all but the last `keep` steps. The index of a checkpoint in parts is removed first, because parts without
/// an index do not count as a checkpoint.
void removeOthers(const std::string& folder, int64_t step, const std::string& mark, int64_t keep) {
  std::error_code error;
  const fs::path where(folder);
  fs::remove(where / cat(stem(step), mark.empty() ? kIndexSuffix : kSuffix), error);
  std::vector<int64_t> steps = checkpointSteps(folder);
  std::erase(steps, step);  // also one that is not the newest: its caller has just asked for it
  const auto most = static_cast<size_t>(keep);
  if (most > 0 && steps.size() >= most)
    for (size_t i = 0; i + most <= steps.size(); ++i)
      for (const std::string_view suffix : {kIndexSuffix, kSuffix})
        fs::remove(where / cat(stem(steps[i]), suffix), error);
  std::vector<fs::path> parts;  // without an index, also those of processes that died while writing
  for (const auto& entry : fs::directory_iterator(where, error)) {
    const std::string name = entry.path().filename().string();
    const std::optional<int64_t> of = stepOfPart(name);
    if (!of) continue;
    const bool is_listed = *of == step ? !mark.empty() && name.starts_with(cat(partStem(step, mark), "-"))
                                       : fs::exists(where / cat(stem(*of), kIndexSuffix), error);
    if (!is_listed) parts.push_back(entry.path());
  }
  for (const fs::path& part : parts) fs::remove(part, error);
}

/// The contents of an index.
struct PartList {
  std::map<std::string, std::string> file_of;
  uint64_t total_bytes = 0;
};

/// Writes what is this process's. stem: what the names of all parts begin with.
PartList writePart(const std::string& folder, const std::string& stem, const Checkpoint& checkpoint, int64_t process,
                   int64_t parts, const std::string& mark) {
  PartList list;
  session::StoredTensors own;
  for (const auto& [name, tensor] : tensorsOf(checkpoint)) {
    list.file_of.emplace(name, shardName(stem, tensor.process, parts));
    list.total_bytes +=
        static_cast<uint64_t>(tensor.type.numel()) * c10::elementSize(static_cast<at::ScalarType>(tensor.type.dtype));
    if (tensor.process == process) own.emplace(name, tensor);
  }
  if (process >= parts || own.empty()) return list;
  std::map<std::string, std::string> metadata = {{kStepEntry, std::to_string(checkpoint.step)}};
  if (process == 0) metadata = metadataOf(checkpoint);
  metadata.emplace(kSetMark, mark);
  writeTensorFile((fs::path(folder) / shardName(stem, process, parts)).string(), own, metadata);
  return list;
}

}  // namespace

std::optional<int64_t> countOf(std::string_view text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0) return {};
  return count;
}

std::string checkpointPath(const std::string& folder, int64_t step) {
  const fs::path index = fs::path(folder) / cat(stem(step), kIndexSuffix);
  std::error_code error;
  if (fs::exists(index, error)) return index.string();
  return (fs::path(folder) / cat(stem(step), kSuffix)).string();
}

std::vector<int64_t> checkpointSteps(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    if (const auto step = stepOf(entry->path().filename().string())) steps.push_back(*step);
  ABELE_REQUIRE(!error || error == std::errc::no_such_file_or_directory, E0712,
                {.what = "the folder of the checkpoints cannot be read",
                 .at = folder,
                 .found = error.message(),
                 .remedy = "pass the folder of the checkpoints"});
  std::ranges::sort(steps);
  steps.erase(std::ranges::unique(steps).begin(), steps.end());
  return steps;
}

std::string writeCheckpoint(const std::string& folder, const Checkpoint& checkpoint, int64_t keep) {
  requireCounts(checkpoint, keep);
  const std::string path = (fs::path(folder) / cat(stem(checkpoint.step), kSuffix)).string();
  writeTensorFile(path, tensorsOf(checkpoint), metadataOf(checkpoint));
  removeOthers(folder, checkpoint.step, {}, keep);
  return path;
}

std::string writeParts(const std::string& folder, const Checkpoint& checkpoint, int64_t keep, int64_t process,
                       int64_t parts, const Together& together) {
  const std::string path = (fs::path(folder) / cat(stem(checkpoint.step), kIndexSuffix)).string();
  const std::string mark = together.mark();
  PartList list;
  together([&] {
    requireCounts(checkpoint, keep);
    list = writePart(folder, partStem(checkpoint.step, mark), checkpoint, process, parts, mark);
  });
  together([&] {
    if (process != 0) return;
    writeTensorIndex(path, list.file_of, list.total_bytes, mark);
    removeOthers(folder, checkpoint.step, mark, keep);
  });
  return path;
}

void writePartsBeside(const std::string& path, const Checkpoint& checkpoint, int64_t process, int64_t parts,
                      const Together& together, const std::function<void(const std::string& index)>& write) {
  const std::string folder = fs::path(path).parent_path().string();
  const std::string mark = together.mark(), stem = cat(fs::path(path).filename().string(), "-", mark);
  PartList list;
  together([&] { list = writePart(folder, stem, checkpoint, process, parts, mark); });
  together([&] {
    if (process != 0) return;
    const std::string index = cat(stem, kIndexSuffix);
    writeTensorIndex((fs::path(folder) / index).string(), list.file_of, list.total_bytes, mark);
    write(index);
    removePartsBeside(path, mark);
  });
}

void removePartsBeside(const std::string& path, const std::string& mark) {
  const std::string before = cat(fs::path(path).filename().string(), "-");
  const fs::path folder = path.find('/') == path.npos ? fs::path(".") : fs::path(path).parent_path();
  std::vector<fs::path> old;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const size_t end = name.starts_with(before) ? name.find_first_not_of("0123456789", before.size()) : name.npos;
    if (end == name.npos || end == before.size() || name.substr(before.size(), end - before.size()) == mark) continue;
    const std::string rest = name.substr(end);
    if (rest == kIndexSuffix || (rest.find("-of-") == 1 + kPartDigits && rest.ends_with(kSuffix)))
      old.push_back(entry.path());
  }
  for (const fs::path& each : old) fs::remove(each, error);
}

Checkpoint readCheckpoint(const std::string& path) {
  removeLeftovers(fs::path(path).parent_path());
  const auto set = std::make_shared<const TensorSet>(path);
  const std::map<std::string, std::string> metadata = set->metadata();
  const auto step = metadata.find(kStepEntry);
  const auto named = countOf(step == metadata.end() ? "" : step->second);
  ABELE_REQUIRE(named, E0501,
                {.what = "the file of tensors is not a checkpoint",
                 .at = path,
                 .expected = "a file that saveCheckpoint() wrote",
                 .remedy = inLanguage("name the folder that saveCheckpoint() wrote; loadWeights() and loadTensors() "
                                      "read other files of tensors")});
  session::StoredTensors all;
  for (const auto& [name, place] : set->places())
    all.emplace(name, session::StoredTensor{
                          .type = contiguousType(static_cast<DType>(place.entry->type), place.entry->sizes),
                          .read = [set, place, name] { return place.file->read(name); },
                          .read_into = [set, place, name](const at::Tensor& into) { place.file->readInto(name, into); },
                          .require_whole = [set, place, name] { place.file->requireWhole(name); }});
  Checkpoint checkpoint{.step = *named};
  checkpoint.weights = takeAll(all, kWeights);
  checkpoint.state.optimizer_state = takeAll(all, kOptimizer);
  for (const auto& [name, tensor] : takeAll(all, kOther)) checkpoint.tensors.emplace(name, tensor.read());
  checkpoint.texts = takeAll(metadata, kText);
  if (const auto random = all.find(kRandom); random != all.end()) checkpoint.state.rng_state = random->second.read();
  return checkpoint;
}

void requireWhole(const Checkpoint& checkpoint, int64_t part, int64_t parts) {
  int64_t index = 0;
  for (const session::StoredTensors* tensors : {&checkpoint.weights, &checkpoint.state.optimizer_state})
    for (const auto& [name, tensor] : *tensors)
      if (index++ % parts == part && tensor.require_whole) tensor.require_whole();
}

}  // namespace abele::files
