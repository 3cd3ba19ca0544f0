#include "model/trained_parameters.h"

#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>

#include "base/log.h"

namespace abele::host {
namespace {

struct Owners {
  std::mutex mu;
  std::map<const c10::TensorImpl*, const void*> all;
};
Owners& owners() {
  static auto* const found = new Owners;  // models of static lifetime outlive it otherwise
  return *found;
}

}  // namespace

void claimParameters(const void* owner, const std::vector<NamedTensor>& tensors) {
  const std::lock_guard lock(owners().mu);
  bool warned = false;
  for (const NamedTensor& t : tensors) {
    if (!t.is_parameter || !t.tensor.requires_grad()) continue;
    const auto [found, is_new] = owners().all.emplace(t.tensor.unsafeGetTensorImpl(), owner);
    if (is_new || found->second == owner || warned) continue;
    log::warn(t.name,
              " is trained by another model that is still alive: each has weights of its own on its devices; "
              "destroy() that one before this one trains, or train both in one model");
    warned = true;
  }
}

void releaseParameters(const void* owner) {
  const std::lock_guard lock(owners().mu);
  std::erase_if(owners().all, [&](const auto& each) { return each.second == owner; });
}

}  // namespace abele::host
