#include "optimizer/optimizer_state.h"

#include <algorithm>
#include <set>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DefaultDtype.h>

#include "base/error.h"
#include "base/log.h"
#include "base/optimizers.h"

namespace abele::optimizer {
namespace {

constexpr const char* kStep = "step";  // torch's name for the count of updates

at::Tensor scalar(double value) {
  return at::scalar_tensor(value, at::dtype(c10::typeMetaToScalarType(c10::get_default_dtype())));
}

/// PopTorch's name of a kind. Kinds with the same state share a name.
std::string kindInPopTorch(const std::string& kind) {
  for (const OptimizerRow& row : allOptimizers())
    for (const OptimizerState& state : row.states)
      if (kind == state.name) return state.name_in_poptorch;
  return kind;
}

std::string keyInPopTorch(const std::string& name) {
  const size_t slash = name.find('/');
  return slash == std::string::npos ? name : cat(kindInPopTorch(name.substr(0, slash)), "___", name.substr(slash + 1));
}

/// The state that torch keeps for a kind of optimizer. As there, the number of steps comes first.
std::vector<OptimizerState> statesOfTorch(OptimizerKind kind) {
  std::vector<OptimizerState> states = optimizerRow(kind).states;
  std::erase_if(states, [](const OptimizerState& state) { return std::string(state.name_in_torch).empty(); });
  std::ranges::stable_partition(states,
                                [](const OptimizerState& state) { return state.type == OptimizerState::Type::kStep; });
  return states;
}

template <class Tensor>
const Tensor* find(const std::map<std::string, Tensor>& tensors, const std::string& name) {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

}  // namespace

OptimizerTensors inPopTorch(const session::StoredTensors& state) {
  OptimizerTensors named;
  for (const auto& [name, value] : state) named.emplace(keyInPopTorch(name), value.read());
  return named;
}

OptimizerTensors fromPopTorch(const OptimizerTensors& given, const session::StoredTensors& current) {
  OptimizerTensors state;
  std::set<std::string> known;
  for (const auto& [name, value] : current) {
    const std::string& key = *known.insert(keyInPopTorch(name)).first;
    if (const at::Tensor* const found = find(given, key))
      state.emplace(name, *found);
    else
      log::warn("optimizer state ", key, " is not in the loaded state and keeps its value");
  }
  for (const auto& [key, value] : given)
    if (!known.contains(key))
      log::warn("optimizer state ", key, " of the loaded state is left out: the compiled optimizer has no such state");
  return state;
}

OptimizerTensors numbersInPopTorch(const OptimizerSpec& optimizer, const std::vector<std::vector<std::string>>& names) {
  OptimizerTensors numbers = {{"lossScaling_FLOAT", scalar(optimizer.loss_scaling)}};
  for (size_t group = 0; group < names.size(); ++group) {
    const Fields& fields = optimizer.groups.at(group);
    const double lr = fields.at("lr");
    const auto decay = fields.find("weight_decay");  // optimizers such as SGD have it
    for (const std::string& name : names[group]) {
      if (optimizer.rules.kind == OptimizerKind::kSgd) {
        const double scaled = lr * (1 - fields.at("dampening"));
        numbers.emplace(cat("scaledLearningRate0___specific___", name), scalar(scaled / optimizer.loss_scaling));
        numbers.emplace(cat("weightDecayScaleFactor0___specific___", name), scalar(1 - scaled * decay->second));
      } else {
        numbers.emplace(cat("learningRate___specific___", name), scalar(lr));
        if (decay != fields.end()) numbers.emplace(cat("weightDecay___specific___", name), scalar(decay->second));
      }
    }
  }
  return numbers;
}

TorchState inTorch(OptimizerKind kind, const session::StoredTensors& state, const std::string& parameter,
                   int64_t updates) {
  const session::StoredTensor* const steps = find(state, cat("step/", parameter));
  if (steps && steps->read().item<double>() == 0) return {};
  TorchState kept;
  for (const OptimizerState& each : statesOfTorch(kind))
    if (const session::StoredTensor* const value = find(state, cat(each.name, "/", parameter)))
      kept.emplace_back(each.name_in_torch, value->read());
  if (kept.empty()) return {};
  // torch counts its updates. The device does not need the count.
  if (kind == OptimizerKind::kRmsprop) kept.emplace_back(kStep, scalar(static_cast<double>(updates)));
  return kept;
}

int64_t takeFromTorch(OptimizerKind kind, const std::optional<OptimizerTensors>& given, const std::string& parameter,
                      const session::StoredTensors& current, OptimizerTensors& state) {
  const OptimizerTensors kept = given.value_or(OptimizerTensors());
  const std::vector<OptimizerState> states = statesOfTorch(kind);
  for (const auto& [name, value] : kept)
    if (name != kStep && std::ranges::none_of(states, [&](const auto& each) { return name == each.name_in_torch; }))
      log::warn("optimizer state ", name, " of ", parameter, " is left out: the devices keep nothing of that name for ",
                optimizerRow(kind).name);
  for (const OptimizerState& each : states) {
    const std::string name = cat(each.name, "/", parameter);
    const session::StoredTensor* const now = find(current, name);
    const at::Tensor* const value = find(kept, each.name_in_torch);
    if (now && value)
      state[name] = value->to(at::kCPU, static_cast<at::ScalarType>(now->type.dtype)).reshape(now->type.sizes);
  }
  const at::Tensor* const steps = find(kept, kStep);
  if (const std::string name = cat("step/", parameter); current.contains(name) && !state.contains(name))
    state[name] = scalar(kept.contains("momentum_buffer"));
  return steps ? steps->item<int64_t>() : given.has_value();
}

}  // namespace abele::optimizer
