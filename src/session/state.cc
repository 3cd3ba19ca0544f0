// Weights, optimizer and random stream of a compiled Session, to and from the device.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include "base/error.h"
#include "base/trace_file.h"
#include "compile/tensors.h"
#include "memory/offload.h"
#include "memory/tensors.h"
#include "session/impl.h"
#include "session/stored_tensor.h"

namespace abele::session {
namespace {

constexpr char kWeightsChannel[] = "abele.weights";  // in traces
// Counts of automatic loss scaling since the factor was last checked: large elements, all elements, updates.
constexpr char kLossScaleCounts[] = "lossScaleCounts";
constexpr int64_t kRoundingBytes = sizeof(device::RoundingPosition);

const char* kindName(passes::OptimizerRules::Kind kind) {
  return kind == passes::OptimizerRules::Kind::kNone ? "no optimizer" : optimizerRow(kind).name;
}

std::string flags(const passes::OptimizerRules::Group& group) {
  return cat("momentum ", group.momentum, ", dampening ", group.torch_dampening, ", amsgrad ", group.amsgrad,
             ", centered ", group.centered, ", use_tf_variant ", group.tf_variant, ", bias_correction ",
             group.bias_correction);
}

/// The property of this optimizer that the compiled update cannot take over, as found and expected; empty if there is
/// none.
Message difference(const passes::OptimizerRules& compiled, const passes::OptimizerRules& next) {
  if (compiled.kind != next.kind)
    return {.what = "the optimizer's type changed", .found = kindName(next.kind), .expected = kindName(compiled.kind)};
  const auto fixed = [](const passes::OptimizerRules& rules) {
    return cat("accumulators ", dtypeName(rules.accumulator), ", first moments ", dtypeName(rules.first_moment),
               ", second moments ", dtypeName(rules.second_moment), ", max_grad_norm ", rules.max_grad_norm);
  };
  if (fixed(compiled) != fixed(next))
    return {.what = "a constant of the optimizer changed", .found = fixed(next), .expected = fixed(compiled)};
  if (compiled.groups.size() != next.groups.size())
    return {.what = "the number of parameter groups changed",
            .found = cat(next.groups.size(), " groups"),
            .expected = cat(compiled.groups.size(), " groups")};
  for (size_t i = 0; i < next.groups.size(); ++i) {
    passes::OptimizerRules::Group given = next.groups[i];
    given.torch_dampening |= compiled.groups[i].torch_dampening;  // a program that counts steps takes any dampening
    const std::string found = flags(given);
    const std::string expected = flags(compiled.groups[i]);
    if (found != expected)
      return {.what = cat("a constant of parameter group ", i, " changed"), .found = found, .expected = expected};
  }
  const auto place = [](const passes::OptimizerRules& rules, const std::string& name) {
    auto group = rules.group_of.find(name);
    return group == rules.group_of.end() ? cat(name, " in no group") : cat(name, " in group ", group->second);
  };
  for (const passes::OptimizerRules* rules : {&compiled, &next})
    for (const auto& [name, group] : rules->group_of)
      if (place(compiled, name) != place(next, name))
        return {.what = cat("parameter ", name, " changed its group"),
                .found = place(next, name),
                .expected = place(compiled, name)};
  return {};
}

/// The rules with element types in place of "those of the parameters", where all parameters have one: C++ and Python
/// say the same in different words.
passes::OptimizerRules withTypes(passes::OptimizerRules rules, const exe::Executable& executable) {
  std::optional<DType> type;
  for (const int32_t i : exe::externalsOf(executable, exe::ExternalKind::kParameter)) {
    const exe::External& external = executable.externals[i];
    if (!rules.group_of.contains(external.name)) continue;
    const DType own = executable.slots[external.slot].type.dtype;
    if (type && *type != own) return rules;
    type = own;
  }
  for (DType* each : {&rules.accumulator, &rules.first_moment, &rules.second_moment})
    if (type && *each == DType::kUndefined) *each = *type;
  return rules;
}

/// Indices of the externals that are the optimizer's state.
std::vector<int32_t> stateOf(const Compiled& compiled) {
  return exe::externalsOf(compiled.executable, exe::ExternalKind::kState);
}

/// The type of the host's tensor. With groups of replicas it has a slice for each group.
Type stateType(const Compiled& compiled, size_t external) {
  const Type& type = compiled.executable.slots[compiled.executable.externals[external].slot].type;
  const size_t slices = compiled.slices[external].replica.size();
  if (slices == 0) return type;
  std::vector<int64_t> sizes = type.sizes;
  sizes.insert(sizes.begin(), static_cast<int64_t>(slices));
  return contiguousType(type.dtype, std::move(sizes));
}

/// One that this process reads from its own devices. lends: the device's own memory where it has some to lend, since a
/// copy would be one tensor more than the plan has.
StoredTensor heldState(const Compiled& compiled, size_t external, bool lends) {
  const exe::Slot& slot = compiled.executable.slots[compiled.executable.externals[external].slot];
  const auto read = [&compiled, external, lends, type = slot.type] {
    const at::NoGradGuard no_grad;
    at::Tensor value;
    if (lends) value = compiled.backend->memory(static_cast<int32_t>(external));
    if (value.defined()) return value;
    value = at::empty(type.sizes, memory::scalarType(type.dtype));
    compiled.backend->download(static_cast<int32_t>(external), value);
    return value;
  };
  return {.type = slot.type, .read = read, .process = std::max(0, compiled.executable.processOf(slot.group))};
}

/// From where it is stored into the device's own memory, where that is possible: a copy would be one tensor more than
/// the plan has.
void takeState(Compiled& compiled, int32_t external, const StoredTensor& stored) {
  const at::Tensor memory = stored.read_into ? compiled.backend->memory(external) : at::Tensor();
  if (!memory.defined() || compile::typeOf(memory) != stored.type)
    return uploadSlices(compiled, static_cast<size_t>(external), stored.read());
  stored.read_into(memory);
  compiled.backend->upload(external, memory);  // which knows of it then
}

/// Throws E0706.
std::vector<int64_t> countsOf(const at::Tensor& tensor) {
  compile::requireMemory(tensor, kLossScaleCounts);
  ABELE_REQUIRE(tensor.scalar_type() == at::kLong && tensor.dim() == 1 && tensor.numel() == 3, E0706,
                {.what = cat("optimizer state ", kLossScaleCounts, " has another shape or type"),
                 .found = compile::typeOf(tensor).str(),
                 .expected = "i64[3] of counts",
                 .remedy = "load a state saved from the same model and optimizer"});
  const at::Tensor values = tensor.contiguous();
  return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + 3};
}

}  // namespace

void Session::copyWeightsToHost() {
  const TraceSpan span("weights to host", kWeightsChannel);
  at::NoGradGuard no_grad;
  Compiled& compiled = impl_->require("copyWeightsToHost()");
  followModel(compiled, /*requires_fit=*/false);
  const std::vector<size_t> elsewhere =
      compiled.shared ? compiled.shared->elsewhere(compiled.model_of) : std::vector<size_t>();
  for (size_t i = 0; i < compiled.model_of.size(); ++i) {
    if (!compiled.model_of[i] || compiled.executable.externals[i].slot < 0 || compiled.model_of[i]->is_meta()) continue;
    if (std::ranges::find(elsewhere, i) != elsewhere.end()) {
      // Memory of another type is the program's own. The other processes ask for the device's here.
      if (!compiled.has_own_weights_alone) copyOf(compiled, i);
      continue;
    }
    downloadSlices(compiled, i, *compiled.model_of[i]);
    const bool is_shared = compiled.shared && compiled.shared->contains(i);
    is_shared ? compiled.weight_watch.forget(i) : compiled.weight_watch.note(i, *compiled.model_of[i]);
    memory::releaseIfOffloaded(*compiled.model_of[i]);
  }
}

void Session::copyWeightsToDevice() {
  const TraceSpan span("weights to device", kWeightsChannel);
  at::NoGradGuard no_grad;
  uploadModel(impl_->require("copyWeightsToDevice()"));
}

void Session::copyBuffersToDevice(const std::vector<std::string>& names) {
  at::NoGradGuard no_grad;
  Compiled& compiled = impl_->require("copyBuffersToDevice()");
  // All names are checked before the first upload: an error leaves the device as it was.
  std::vector<int32_t> chosen;
  std::set<std::string> buffers;
  for (const capture::ModelTensor& m : compiled.model)
    if (!m.is_parameter) buffers.insert(m.name);
  std::multimap<std::string, int32_t> used;
  for (size_t i = 0; i < compiled.executable.externals.size(); ++i)
    if (compiled.executable.externals[i].slot >= 0 && compiled.model_of[i])
      used.emplace(compiled.executable.externals[i].name, static_cast<int32_t>(i));
  for (const std::string& name : names) {
    ABELE_REQUIRE(buffers.contains(name), E0708,
                  {.what = cat("the model has no buffer named ", name), .remedy = "use names of named_buffers()"});
    const auto [first, last] = used.equal_range(name);
    for (auto it = first; it != last; ++it) chosen.push_back(it->second);
  }
  for (int32_t i : chosen)
    if (!compiled.model_of[i]->is_meta()) uploadTensor(compiled, static_cast<size_t>(i));
}

void Session::setOptimizer(const compile::OptimizerSpec& optimizer) {
  Compiled& compiled = impl_->require("setOptimizer()");
  Message found = difference(withTypes(compiled.optimizer.rules, compiled.executable),
                             withTypes(optimizer.rules, compiled.executable));
  if (!found.what.empty()) {
    found.remedy = "change values of the compiled optimizer only, or destroy() the model and compile it again";
    throwUser(ErrorCode::E0706, std::move(found));
  }
  setHypers(compiled, optimizer);
  compiled.optimizer = optimizer;
}

std::map<std::string, at::Tensor> Session::optimizerState() const {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : wholeState()) state.emplace(name, tensor.read());
  return state;
}

StoredTensors Session::wholeState() const {
  const Compiled& compiled = impl_->require("optimizerState()");
  StoredTensors state;
  for (const int32_t i : stateOf(compiled)) {
    const auto read = [&compiled, i] {
      const at::NoGradGuard no_grad;
      return copyOf(compiled, i);
    };
    state.emplace(compiled.executable.externals[i].name, StoredTensor{.type = stateType(compiled, i), .read = read});
  }
  if (impl_->options.auto_loss_scaling) {
    state.emplace(kLossScaleFactor, stored(at::full({}, compiled.loss_scale_factor)));
    state.emplace(
        kLossScaleCounts,
        stored(at::tensor({compiled.counted.large, compiled.counted.all, compiled.updates_counted}, at::kLong)));
  }
  return state;
}

StoredTensors Session::ownState() const {
  const Compiled& compiled = impl_->require("optimizerState()");
  if (!compiled.has_own_weights_alone) return wholeState();
  StoredTensors state;
  for (const int32_t i : stateOf(compiled))
    if (isHere(compiled, i, impl_->options))
      state.emplace(compiled.executable.externals[i].name, heldState(compiled, i, /*lends=*/false));
  return state;
}

StoredTensors Session::storedState() const {
  const Compiled& compiled = impl_->require("optimizerState()");
  StoredTensors state;
  if (!compiled.has_own_weights_alone) {
    for (auto& [name, tensor] : optimizerState()) state.emplace(name, stored(tensor));
    return state;
  }
  for (const int32_t i : stateOf(compiled))
    state.emplace(compiled.executable.externals[i].name, heldState(compiled, i, /*lends=*/true));
  return state;
}

bool Session::hasOwnWeightsAlone() const { return impl_->require("a question of its weights").has_own_weights_alone; }

void Session::setOptimizerState(const std::map<std::string, at::Tensor>& state) {
  impl_->require("setOptimizerState()");
  StoredTensors tensors;
  for (const auto& [name, tensor] : state) {
    compile::requireMemory(tensor, name);
    tensors.emplace(name, stored(tensor));
  }
  takeStoredState(tensors);
}

void Session::takeStoredState(const StoredTensors& state) {
  at::NoGradGuard no_grad;
  Compiled& compiled = impl_->require("setOptimizerState()");
  std::vector<std::pair<int32_t, const StoredTensor*>> uploads;
  double factor = compiled.loss_scale_factor;
  std::optional<std::vector<int64_t>> counts;
  std::map<std::string, int32_t> index_of;
  for (const int32_t i : stateOf(compiled)) index_of.insert_or_assign(compiled.executable.externals[i].name, i);
  for (const auto& [name, tensor] : state) {
    if (name == kLossScaleFactor) {
      if (impl_->options.auto_loss_scaling) factor = tensor.read().item<double>();
      continue;
    }
    if (name == kLossScaleCounts) {
      counts = countsOf(tensor.read());
      continue;
    }
    const auto found_index = index_of.find(name);
    ABELE_REQUIRE(found_index != index_of.end(), E0706,
                  {.what = cat("the compiled optimizer has no state named ", name),
                   .remedy = "load a state saved from the same model and optimizer"});
    const int32_t index = found_index->second;
    const Type expected = stateType(compiled, static_cast<size_t>(index));
    const Type& found = tensor.type;
    ABELE_REQUIRE(found.dtype == expected.dtype && found.sizes == expected.sizes, E0706,
                  {.what = cat("optimizer state ", name, " has another shape or type"),
                   .found = found.str(),
                   .expected = expected.str(),
                   .remedy = "load a state saved from the same model and optimizer"});
    if (compiled.has_own_weights_alone && !isHere(compiled, static_cast<size_t>(index), impl_->options)) continue;
    uploads.emplace_back(index, &tensor);
  }
  for (const auto& [index, tensor] : uploads) takeState(compiled, index, *tensor);
  compiled.loss_scale_factor = factor;
  // Older versions did not store the counts. For such a state a new period begins.
  if (impl_->options.auto_loss_scaling && (counts || state.contains(kLossScaleFactor))) {
    compiled.counted =
        counts ? device::GradientSizes{.large = (*counts)[0], .all = (*counts)[1]} : device::GradientSizes{};
    compiled.updates_counted = counts ? (*counts)[2] : 0;
  }
  setHypers(compiled, compiled.optimizer);
}

double Session::lossScale() const { return finalLossScale(impl_->require("lossScale()")); }

std::map<std::string, at::Tensor> Session::gradientSums() const {
  at::NoGradGuard no_grad;
  const Compiled& compiled = impl_->require("gradientSums()");
  const passes::OptimizerRules& rules = compiled.optimizer.rules;
  ABELE_REQUIRE(rules.kind == passes::OptimizerRules::Kind::kNone, E0706,
                {.what = "the program updates the weights itself and keeps no gradients",
                 .found = kindName(rules.kind),
                 .expected = kindName(passes::OptimizerRules::Kind::kNone),
                 .remedy = "compile the program without an optimizer, or anchor Gradient___ tensors"});
  const exe::Executable& executable = compiled.executable;
  ABELE_REQUIRE(
      executable.processes == 1, E0711,
      {.what = "gradients of a program without an optimizer are not available in training of several processes",
       .found = cat(executable.processes, " processes"),
       .remedy = "start one process with all replicas"});
  std::map<std::string, at::Tensor> sums;
  for (const int32_t i : exe::externalsOf(executable, exe::ExternalKind::kAccumulator)) {
    at::Tensor sum = copyOf(compiled, i);
    // In ascending order, as the reduction of replicas before an update.
    for (int32_t replica = 1; replica < executable.replicas; ++replica)
      at::add_out(sum, sum, compiled.backend->value(i, replica));
    sums.emplace(executable.externals[executable.externals[i].owner].name, std::move(sum));
  }
  return sums;
}

// The generator's state, followed by the position of stochastic rounding if the program rounds so.
at::Tensor Session::rngState() const {
  const Compiled& compiled = impl_->require("rngState()");
  const at::Tensor state = compiled.backend->generator().get_state();
  if (!impl_->options.stochastic_rounding) return state;
  const device::RoundingPosition rounding = compiled.backend->rounding();
  at::Tensor result = at::empty({state.numel() + kRoundingBytes}, state.options());
  auto* bytes = result.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, state.const_data_ptr<uint8_t>(), static_cast<size_t>(state.numel()));
  std::memcpy(bytes + state.numel(), &rounding, sizeof rounding);
  return result;
}

void Session::setRngState(const at::Tensor& state) {
  Compiled& compiled = impl_->require("setRngState()");
  compile::requireMemory(state, "the state of the random stream");
  at::Generator generator = compiled.backend->newGenerator(0);
  const int64_t size = generator.get_state().numel();
  const bool has_rounding = state.numel() == size + kRoundingBytes;
  generator.set_state(has_rounding ? state.narrow(0, 0, size).clone() : state);
  compiled.backend->setGenerator(generator);
  if (!has_rounding) return;
  device::RoundingPosition rounding;
  const at::Tensor rest = state.narrow(0, size, kRoundingBytes).contiguous();
  std::memcpy(&rounding, rest.const_data_ptr<uint8_t>(), sizeof rounding);
  compiled.backend->setRounding(rounding);
}

}  // namespace abele::session
