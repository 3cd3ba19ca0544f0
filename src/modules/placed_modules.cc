#include "modules/placed_modules.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <c10/util/intrusive_ptr.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/nearest.h"
#include "capture/annotate.h"
#include "files/weight_files.h"
#include "modules/weight_targets.h"
#include "options/ipu_config.h"

namespace abele::modules {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Placed {
  ModuleDevices::List placement;
  WeakTensor first;  // the module's first tensor: another module may be at the same address later
};
struct PlacedRegistry {
  ProcessMutex mutex;
  std::map<const torch::nn::Module*, Placed> all;
};
PlacedRegistry& placedRegistry() {
  static auto* one = new PlacedRegistry;
  return *one;
}

bool isIn(std::string_view name, std::string_view module) {
  return name.size() > module.size() && name.starts_with(module) && name[module.size()] == '.';
}

std::string scopeOf(std::string name) {
  const size_t end = name.rfind('.');
  name.resize(end == std::string::npos ? 0 : end);
  std::ranges::replace(name, '.', '/');
  return name;
}

/// The innermost placed module that contains the tensor of this name; -1: none.
int32_t innermost(const ModuleDevices::List& placement, const std::string& name) {
  int32_t found = -1;
  size_t longest = 0;
  for (size_t i = 0; i < placement.size(); ++i) {
    const std::string& path = placement[i].first;
    if (!isIn(name, path) || path.size() < longest) continue;
    longest = path.size();
    found = static_cast<int32_t>(i);
  }
  return found;
}

std::string listed(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += cat(text.empty() ? "" : ", ", number);
  return cat("[", text, "]");
}

void requirePath(const std::vector<std::string>& paths, const std::string& path) {
  ABELE_REQUIRE(std::find(paths.begin(), paths.end(), path) != paths.end(), E0708,
                {.what = cat("there is no module ", path),
                 .expected = "the path of a submodule, as register_module named it",
                 .remedy = didYouMean(path, paths, "print the module to see them")});
}

}  // namespace

void placeModules(const torch::nn::Module& module, const ModuleDevices::List& placement) {
  const std::vector<NamedTensor> tensors = tensorsOf(module);
  const std::vector<files::WeightTarget> targets = weightTargetsOf(module);
  const std::vector<std::string> paths = modulePaths(module);
  for (const auto& [path, devices] : placement) {
    requirePath(paths, path);
    const bool has_any = std::ranges::any_of(targets, [&](const files::WeightTarget& target) {
      return std::ranges::any_of(target.names, [&](const std::string& name) { return isIn(name, path); });
    });
    ABELE_REQUIRE(
        has_any, E0708,
        {.what = cat("the module ", path, " has no parameter or buffer, so its use in forward cannot be found"),
         .remedy = "place the module before it, or begin a Block in forward"});
    const std::vector<int>& ids = devices.devices();
    ABELE_REQUIRE(!ids.empty() && *std::ranges::min_element(ids) >= 0, E0708,
                  {.what = cat("device of module ", path), .found = listed(ids), .expected = ">= 0"});
  }
  const std::lock_guard lock(placedRegistry().mutex);
  std::erase_if(placedRegistry().all, [](const auto& entry) { return entry.second.first.expired(); });
  placedRegistry().all.erase(&module);
  if (!placement.empty())
    placedRegistry().all.emplace(&module, Placed{placement, WeakTensor(tensors.front().tensor.getIntrusivePtr())});
}

ModulePlacement layersPerIpu(const torch::nn::Module& module, const std::string& layers,
                             std::vector<int> layers_per_ipu, int first_ipu) {
  std::vector<std::string> children;
  const std::vector<std::string> paths = modulePaths(module);
  requirePath(paths, layers);
  for (const std::string& path : paths)
    if (isIn(path, layers) && path.find('.', layers.size() + 1) == std::string::npos) children.push_back(path);
  const auto shares =
      options::dealtLayers({layers_per_ipu.begin(), layers_per_ipu.end()}, static_cast<int64_t>(children.size()));
  ABELE_REQUIRE(shares, E0708,
                {.what = cat("the layers per IPU do not add up to the ", children.size(), " layers of ", layers),
                 .found = listed(layers_per_ipu),
                 .expected = "numbers that add up to them, or -1 for equal shares of the rest"});
  ModulePlacement placement;
  for (size_t i = 0; i < shares->size(); ++i)
    for (int64_t layer = 0; layer < (*shares)[i]; ++layer)
      placement.emplace_back(children.at(placement.size()), first_ipu + static_cast<int>(i));
  return placement;
}

int& openBlocks() {
  thread_local int number = 0;
  return number;
}

PlacedModules::PlacedModules(const torch::nn::Module* module, const std::vector<NamedTensor>& tensors, bool ordered)
    : ordered_(ordered) {
  for (const NamedTensor& tensor : tensors) scope_of_.push_back(scopeOf(tensor.name));
  {
    const std::lock_guard lock(placedRegistry().mutex);
    const auto found = placedRegistry().all.find(module);
    if (found == placedRegistry().all.end() || tensors.empty()) return;
    const auto first = found->second.first.lock();
    if (!first || first.get() != tensors.front().tensor.unsafeGetTensorImpl()) return;
    placement_ = found->second.placement;
  }
  std::unordered_map<const void*, std::vector<std::string>> names_of;
  for (files::WeightTarget& target : weightTargetsOf(*module))
    names_of.emplace(target.tensor.unsafeGetTensorImpl(), std::move(target.names));
  for (const NamedTensor& tensor : tensors) {
    std::vector<int32_t>& blocks = blocks_of_.emplace_back();
    for (const std::string& name : names_of[tensor.tensor.unsafeGetTensorImpl()])
      if (const int32_t block = innermost(placement_, name); block >= 0) blocks.push_back(block);
    std::ranges::sort(blocks);
  }
}

void PlacedModules::begin() {
  was_read_.assign(placement_.size(), false);
  current_ = -1;
  if (!placement_.empty()) enter(0);
}

std::function<std::string(int32_t)> PlacedModules::reader() {
  return [this](int32_t tensor) {
    const auto index = static_cast<size_t>(tensor);
    if (!placement_.empty() && openBlocks() == 0) {
      if (const int32_t block = blockFor(blocks_of_.at(index)); block >= 0) {
        enter(block);
        was_read_[block] = true;
      }
    }
    return scope_of_.at(index);
  };
}

/// The block in which a read of a tensor of these blocks is; -1: in whichever is active. A tensor that modules share is
/// read by the one that is active, or by the next of them.
int32_t PlacedModules::blockFor(const std::vector<int32_t>& blocks) const {
  const auto mayBegin = [&](int32_t block) { return !ordered_ || block == current_ || !was_read_[block]; };
  for (const int32_t block : blocks)
    if (block >= current_ && mayBegin(block)) return block;
  for (const int32_t block : blocks)
    if (mayBegin(block)) return block;
  return -1;
}

void PlacedModules::enter(int32_t block) {
  if (!capture::isCapturing()) return;
  const auto& [path, devices] = placement_[static_cast<size_t>(block)];
  if (block == current_ && capture::currentBlock() == path) return;
  current_ = block;
  capture::beginBlock(path, devices.devices());
}

}  // namespace abele::modules
