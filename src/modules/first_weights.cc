#include "modules/first_weights.h"

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include "base/error.h"
#include "compile/meta_tensors.h"
#include "compile/tensors.h"

namespace abele::modules {
namespace {

namespace nn = torch::nn;

template <class M>
void reset(M& module) {
  module.reset_parameters();
}
void reset(nn::MultiheadAttentionImpl& module) { module._reset_parameters(); }
void reset(nn::PReLUImpl& module) { nn::init::constant_(module.weight, module.options.init()); }

template <class M>
bool resetAs(nn::Module& module, bool draws) {
  auto* const own = dynamic_cast<M*>(&module);
  if (own && draws) reset(*own);
  return own != nullptr;
}
template <class... M>
bool resetAsOneOf(nn::Module& module, bool draws) {
  return (resetAs<M>(module, draws) || ...);
}

/// Returns true for a module of torch::nn that draws its values. With `draws` it calls the module's initialiser.
bool resetOfTorch(nn::Module& module, bool draws) {
  return resetAsOneOf<nn::LinearImpl, nn::BilinearImpl, nn::Conv1dImpl, nn::Conv2dImpl, nn::Conv3dImpl,
                      nn::ConvTranspose1dImpl, nn::ConvTranspose2dImpl, nn::ConvTranspose3dImpl, nn::BatchNorm1dImpl,
                      nn::BatchNorm2dImpl, nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl,
                      nn::InstanceNorm3dImpl, nn::LayerNormImpl, nn::GroupNormImpl, nn::EmbeddingImpl,
                      nn::EmbeddingBagImpl, nn::RNNImpl, nn::LSTMImpl, nn::GRUImpl, nn::RNNCellImpl, nn::LSTMCellImpl,
                      nn::GRUCellImpl, nn::PReLUImpl, nn::MultiheadAttentionImpl, nn::TransformerEncoderLayerImpl,
                      nn::TransformerDecoderLayerImpl, nn::TransformerEncoderImpl, nn::TransformerDecoderImpl,
                      nn::TransformerImpl, nn::AdaptiveLogSoftmaxWithLossImpl>(module, draws);
}

struct Visited {
  std::string path;
  std::shared_ptr<nn::Module> held;  // null: the root
  nn::Module* module;
};

/// Collects each module once, children first.
void collect(const std::string& path, nn::Module& module, const std::shared_ptr<nn::Module>& held,
             std::unordered_set<const void*>& seen, std::vector<Visited>& modules) {
  if (!seen.insert(&module).second) return;
  for (const auto& child : module.named_children())
    collect(path.empty() ? child.key() : cat(path, ".", child.key()), *child.value(), child.value(), seen, modules);
  modules.push_back({path, held, &module});
}
std::vector<Visited> childrenFirst(nn::Module& module) {
  std::unordered_set<const void*> seen;
  std::vector<Visited> modules;
  collect("", module, nullptr, seen, modules);
  return modules;
}

std::vector<at::Tensor> tensorsIn(const nn::Module& module, bool recurse) {
  std::vector<at::Tensor> tensors = module.parameters(recurse);
  for (const at::Tensor& buffer : module.buffers(recurse)) tensors.push_back(buffer);
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return tensors;
}

void requireKnown(const Visited& visited, bool is_known) {
  if (is_known || tensorsIn(*visited.module, /*recurse=*/false).empty()) return;
  throwUser(ErrorCode::E0708,
            {.what = cat("the weights of the module ", visited.path.empty() ? "itself" : visited.path,
                         " have no initial values"),
             .found = cat("a ", visited.module->name(), " with parameters or buffers of its own"),
             .expected = "one of torch::nn's modules, or a function that initialises it",
             .remedy = "initWeights(model, seed, [](torch::nn::Module& module) { ... return true; }), or load files: "
                       "loadWeights(path, model)"});
}

/// Restores torch's random state at its end.
class KeptRandomState {
 public:
  explicit KeptRandomState(uint64_t seed) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~KeptRandomState() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeptRandomState(const KeptRandomState&) = delete;
  KeptRandomState& operator=(const KeptRandomState&) = delete;

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();  // shares the default generator's state
  at::Tensor state_;
};

/// Gives tensors memory while a module draws.
class PassingMemory {
 public:
  explicit PassingMemory(const std::vector<at::Tensor>& tensors) : memories_(compile::giveMemory(tensors)) {}
  ~PassingMemory() { compile::takeMemory(memories_); }
  PassingMemory(const PassingMemory&) = delete;
  PassingMemory& operator=(const PassingMemory&) = delete;

 private:
  const compile::Memories memories_;
};

}  // namespace

void toMeta(const nn::Module& module) {
  const c10::InferenceMode no_autograd;
  const std::vector<NamedTensor> tensors = tensorsOf(module);
  for (const NamedTensor& each : tensors) compile::requireMemory(each.tensor, each.name);
  std::unordered_map<const c10::StorageImpl*, c10::Storage> made;
  std::vector<c10::Storage> kept;  // kept until the end, because their addresses are keys
  for (const NamedTensor& each : tensors) {
    if (each.tensor.is_meta()) continue;
    const c10::Storage before = each.tensor.storage();
    c10::Storage& storage = made[before.unsafeGetStorageImpl()];
    if (!storage)
      storage = at::empty({static_cast<int64_t>(before.nbytes())}, at::dtype(at::kByte).device(at::kMeta)).storage();
    kept.push_back(before);
    compile::setMemory(each.tensor, storage);
  }
}

void requireFirstWeights(const nn::Module& module) {
  for (const Visited& each : childrenFirst(const_cast<nn::Module&>(module)))
    requireKnown(each, resetOfTorch(*each.module, /*draws=*/false));
}

void drawFirstWeights(nn::Module& module, uint64_t seed, const InitModule& own,
                      const std::vector<NamedTensor>* needed) {
  const at::NoGradGuard no_grad;
  const KeptRandomState random(seed);
  std::unordered_set<const void*> kept;
  if (needed)
    for (const NamedTensor& each : *needed) kept.insert(each.tensor.unsafeGetTensorImpl());
  std::vector<compile::Memories> given;
  try {
    for (const Visited& each : childrenFirst(module)) {
      std::vector<at::Tensor> lasting, passing;  // also those of children, because a module may change them
      for (const at::Tensor& tensor : tensorsIn(*each.module, /*recurse=*/true))
        (kept.contains(tensor.unsafeGetTensorImpl()) ? lasting : passing).push_back(tensor);
      given.push_back(compile::giveMemory(lasting));
      const PassingMemory memory(passing);
      requireKnown(each, (own && own(*each.module)) || resetOfTorch(*each.module, /*draws=*/true));
    }
  } catch (...) {
    for (const compile::Memories& memories : given) compile::takeMemory(memories);
    throw;
  }
}

}  // namespace abele::modules
