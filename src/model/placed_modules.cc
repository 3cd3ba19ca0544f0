#include "model/placed_modules.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include <c10/util/intrusive_ptr.h>

#include "base/error.h"
#include "base/nearest.h"
#include "capture/annotate.h"
#include "options/ipu_config.h"

namespace abele::host {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Placed {
  ModulePlacement placement;
  WeakTensor first;  // of the module's tensors: another module may be at the same address later
};
struct Registry {
  std::mutex mutex;
  std::map<const torch::nn::Module*, Placed> all;
};
Registry& registry() {
  static auto* one = new Registry;
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

void placeModules(const torch::nn::Module& module, const ModulePlacement& placement) {
  const std::vector<NamedTensor> tensors = tensorsOf(module);
  const std::vector<std::string> paths = modulePaths(module);
  for (const auto& [path, ipu] : placement) {
    requirePath(paths, path);
    const bool has_any = std::ranges::any_of(tensors, [&](const NamedTensor& t) { return isIn(t.name, path); });
    ABELE_REQUIRE(
        has_any, E0708,
        {.what = cat("the module ", path, " has no parameter or buffer by which forward could be seen to use it"),
         .remedy = "place the module before it, or begin a Block in forward"});
    ABELE_REQUIRE(ipu >= 0, E0708, {.what = cat("device of module ", path), .found = cat(ipu), .expected = ">= 0"});
  }
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().all, [](const auto& entry) { return entry.second.first.expired(); });
  registry().all.erase(&module);
  if (!placement.empty())
    registry().all.emplace(&module, Placed{placement, WeakTensor(tensors.front().tensor.getIntrusivePtr())});
}

ModulePlacement layersPerIpu(const torch::nn::Module& module, const std::string& layers,
                             std::vector<int> layers_per_ipu, int first_ipu) {
  std::vector<std::string> children;
  const std::vector<std::string> paths = modulePaths(module);
  requirePath(paths, layers);
  for (const std::string& path : paths)
    if (isIn(path, layers) && path.find('.', layers.size() + 1) == std::string::npos) children.push_back(path);
  const auto shares =
      dealtLayers({layers_per_ipu.begin(), layers_per_ipu.end()}, static_cast<int64_t>(children.size()));
  ABELE_REQUIRE(shares, E0708,
                {.what = cat("the layers per IPU do not make up the ", children.size(), " layers of ", layers),
                 .found = listed(layers_per_ipu),
                 .expected = "numbers that add up to them, or -1 for equal shares of what is left"});
  ModulePlacement placement;
  for (size_t i = 0; i < shares->size(); ++i)
    for (int64_t layer = 0; layer < (*shares)[i]; ++layer)
      placement.emplace_back(children.at(placement.size()), first_ipu + static_cast<int>(i));
  return placement;
}

PlacedModules::PlacedModules(const torch::nn::Module* module, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) scope_of_.push_back(scopeOf(tensor.name));
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().all.find(module);
    if (found == registry().all.end() || tensors.empty()) return;
    const auto first = found->second.first.lock();
    if (!first || first.get() != tensors.front().tensor.unsafeGetTensorImpl()) return;
    placement_ = found->second.placement;
  }
  for (const NamedTensor& tensor : tensors) {
    int32_t block = -1;
    size_t longest = 0;
    for (size_t i = 0; i < placement_.size(); ++i) {
      const std::string& path = placement_[i].first;
      if (!isIn(tensor.name, path) || path.size() < longest) continue;
      longest = path.size();
      block = static_cast<int32_t>(i);
    }
    block_of_.push_back(block);
  }
}

void PlacedModules::begin() {
  current_ = -1;
  if (!placement_.empty()) enter(0);
}

std::function<std::string(int32_t)> PlacedModules::reader() {
  return [this](int32_t tensor) {
    const auto index = static_cast<size_t>(tensor);
    if (!placement_.empty() && block_of_.at(index) >= 0) enter(block_of_[index]);
    return scope_of_.at(index);
  };
}

void PlacedModules::enter(int32_t block) {
  if (block == current_ || !capture::isCapturing()) return;
  current_ = block;
  const auto& [path, ipu] = placement_[static_cast<size_t>(block)];
  capture::beginBlock(path, ipu);
}

}  // namespace abele::host
