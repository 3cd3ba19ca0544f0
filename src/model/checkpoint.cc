#include "model/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/whole_file.h"
#include "model/tensor_file.h"

namespace abele::host {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";
constexpr int kDigits = 10;
// Where each kind of tensor is in the file.
constexpr std::string_view kWeights = "model/", kOptimizer = "optimizer/", kOther = "other/", kText = "text/";
constexpr const char* kRandom = "random/devices";
constexpr const char* kStep = "abele.step";

std::optional<int64_t> stepOf(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return {};
  return step;
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

}  // namespace

std::string checkpointPath(const std::string& folder, int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return (fs::path(folder) / cat(kPrefix, digits, kSuffix)).string();
}

std::vector<int64_t> checkpointSteps(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (const auto step = stepOf(entry.path().filename().string());
        step && entry.path() == fs::path(checkpointPath(folder, *step)))
      steps.push_back(*step);
  std::ranges::sort(steps);
  return steps;
}

std::string writeCheckpoint(const std::string& folder, const Checkpoint& checkpoint, int64_t keep) {
  ABELE_REQUIRE(checkpoint.step >= 0 && keep >= 0, E0702,
                {.what = "a checkpoint of a negative step, or that keeps a negative number of them",
                 .found = cat("step ", checkpoint.step, ", keep ", keep),
                 .expected = "0 or more"});
  TensorFile file;
  putAll(file.tensors, kWeights, checkpoint.weights);
  putAll(file.tensors, kOptimizer, checkpoint.state.optimizer_state);
  putAll(file.tensors, kOther, checkpoint.tensors);
  if (checkpoint.state.rng_state.defined()) file.tensors.emplace(kRandom, checkpoint.state.rng_state);
  putAll(file.metadata, kText, checkpoint.texts);
  file.metadata.emplace(kStep, std::to_string(checkpoint.step));
  const std::string path = checkpointPath(folder, checkpoint.step);
  writeTensorFile(path, file);
  std::vector<int64_t> steps = checkpointSteps(folder);
  std::erase(steps, checkpoint.step);  // also one that is not the newest: its caller has just asked for it
  const auto most = static_cast<size_t>(keep);
  std::error_code error;
  if (most > 0 && steps.size() >= most)
    for (size_t i = 0; i + most <= steps.size(); ++i) fs::remove(checkpointPath(folder, steps[i]), error);
  return path;
}

Checkpoint readCheckpoint(const std::string& path) {
  removeLeftovers(fs::path(path).parent_path());
  const TensorFile file = readTensorFile(path);
  const auto step = file.metadata.find(kStep);
  const auto named = stepOf(cat(kPrefix, step == file.metadata.end() ? "" : step->second, kSuffix));
  ABELE_REQUIRE(named, E0501,
                {.what = "a file of tensors that is no checkpoint",
                 .at = path,
                 .expected = "a file that saveCheckpoint() wrote"});
  Checkpoint checkpoint{.step = *named};
  checkpoint.weights = takeAll(file.tensors, kWeights);
  checkpoint.state.optimizer_state = takeAll(file.tensors, kOptimizer);
  checkpoint.tensors = takeAll(file.tensors, kOther);
  checkpoint.texts = takeAll(file.metadata, kText);
  if (const auto random = file.tensors.find(kRandom); random != file.tensors.end())
    checkpoint.state.rng_state = random->second.clone();
  return checkpoint;
}

}  // namespace abele::host
