#include "model/trained_parameters.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/core/Tensor.h>

#include "base/fork.h"

namespace abele::model {
namespace {

struct Trainer {
  const void* owner = nullptr;
  std::weak_ptr<Model> model;
};
struct Owners {
  ProcessMutex mu;
  std::map<const c10::TensorImpl*, std::vector<Trainer>> all;
  std::map<const c10::TensorImpl*, uint64_t> ended;  // `changes` when the last training of a tensor ended
  std::atomic<uint64_t> changes = 0;
};
Owners& owners() {
  static auto* const found = new Owners;  // never freed, because models of static lifetime may outlive it
  return *found;
}

}  // namespace

void claimParameters(const void* owner, const std::weak_ptr<Model>& model,
                     const std::vector<modules::NamedTensor>& tensors) {
  const std::lock_guard lock(owners().mu);
  ++owners().changes;
  for (const modules::NamedTensor& t :
       tensors) {  // also frozen parameters and buffers, because a training writes statistics
    std::vector<Trainer>& trainers = owners().all[t.tensor.unsafeGetTensorImpl()];
    if (std::ranges::find(trainers, owner, &Trainer::owner) == trainers.end()) trainers.push_back({owner, model});
  }
}

void releaseParameters(const void* owner) {
  const std::lock_guard lock(owners().mu);
  const uint64_t now = ++owners().changes;
  for (auto it = owners().all.begin(); it != owners().all.end();) {
    if (std::erase_if(it->second, [&](const Trainer& each) { return each.owner == owner; }) > 0)
      owners().ended[it->first] = now;
    it = it->second.empty() ? owners().all.erase(it) : std::next(it);
  }
}

std::vector<std::shared_ptr<Model>> trainersOf(const std::vector<modules::NamedTensor>& tensors) {
  std::vector<std::shared_ptr<Model>> models;
  const std::lock_guard lock(owners().mu);
  for (const modules::NamedTensor& t : tensors) {
    const auto found = owners().all.find(t.tensor.unsafeGetTensorImpl());
    if (found == owners().all.end()) continue;
    for (const Trainer& trainer : found->second)
      if (std::shared_ptr<Model> model = trainer.model.lock();
          model && std::ranges::find(models, model) == models.end())
        models.push_back(std::move(model));
  }
  return models;
}

uint64_t numChanges() { return owners().changes; }

uint64_t lastEnd(const std::vector<modules::NamedTensor>& tensors) {
  const std::lock_guard lock(owners().mu);
  uint64_t last = 0;
  for (const modules::NamedTensor& t : tensors)
    if (const auto found = owners().ended.find(t.tensor.unsafeGetTensorImpl()); found != owners().ended.end())
      last = std::max(last, found->second);
  return last;
}

}  // namespace abele::model
