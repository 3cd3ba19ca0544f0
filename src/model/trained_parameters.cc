#include "model/trained_parameters.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>

#include "base/log.h"

namespace abele::host {
namespace {

struct Trainer {
  const void* owner = nullptr;
  std::weak_ptr<Model> model;
};
struct Owners {
  std::mutex mu;
  std::map<const c10::TensorImpl*, Trainer> all;
  std::atomic<uint64_t> claims = 0;
};
Owners& owners() {
  static auto* const found = new Owners;  // models of static lifetime outlive it otherwise
  return *found;
}

}  // namespace

void claimParameters(const void* owner, const std::weak_ptr<Model>& model, const std::vector<NamedTensor>& tensors) {
  const std::lock_guard lock(owners().mu);
  ++owners().claims;
  bool warned = false;
  for (const NamedTensor& t : tensors) {
    if (!t.is_parameter || !t.tensor.requires_grad()) continue;
    const auto [found, is_new] = owners().all.emplace(t.tensor.unsafeGetTensorImpl(), Trainer{owner, model});
    if (is_new || found->second.owner == owner || warned) continue;
    log::warn(t.name,
              " is trained by another model that is still alive: each has weights of its own on its devices; "
              "destroy() that one before this one trains, or train both in one model");
    warned = true;
  }
}

void releaseParameters(const void* owner) {
  const std::lock_guard lock(owners().mu);
  std::erase_if(owners().all, [&](const auto& each) { return each.second.owner == owner; });
}

std::vector<std::shared_ptr<Model>> trainersOf(const std::vector<NamedTensor>& tensors) {
  std::vector<std::shared_ptr<Model>> models;
  const std::lock_guard lock(owners().mu);
  for (const NamedTensor& t : tensors) {
    const auto found = owners().all.find(t.tensor.unsafeGetTensorImpl());
    std::shared_ptr<Model> model = found == owners().all.end() ? nullptr : found->second.model.lock();
    if (model && std::ranges::find(models, model) == models.end()) models.push_back(std::move(model));
  }
  return models;
}

uint64_t numClaims() { return owners().claims; }

}  // namespace abele::host
