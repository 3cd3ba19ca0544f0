#include "optimizer/optimizer_attributes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/joined.h"
#include "base/log.h"
#include "base/optimizers.h"
#include "options/value.h"

namespace abele::optimizer {
namespace {

using Attributes = OptimizerAttributes;
constexpr int kWhole = Attributes::kWhole;

// Attributes that are the same for all groups and never change after compilation, with their texts for an optimizer
// that lacks them. type: the element type that it gives; if two give one, the first counts.
struct WholeAttribute {
  const char* name;
  const char* text_if_absent;
  DType passes::OptimizerRules::*type = nullptr;
};
constexpr WholeAttribute kWholeAttributes[] = {
    {"use_combined_accum", "False"},
    {"accum_type", "torch.float32", &passes::OptimizerRules::accumulator},
    {"velocity_accum_type", "torch.float32", &passes::OptimizerRules::first_moment},
    {"first_order_momentum_accum_type", "torch.float32", &passes::OptimizerRules::first_moment},
    {"second_order_momentum_accum_type", "torch.float32", &passes::OptimizerRules::second_moment},
    {"max_grad_norm", "inf"},
    {"bias_correction", "True"},
    {"use_tf_variant", "False"},
};
constexpr const char* kWholeFlags[] = {"use_tf_variant", "bias_correction"};

// Attributes of torch's own optimizers that are constant while they have this value.
const std::map<std::string, double>& constantsOfTorch() {
  static const std::map<std::string, double> values = {
      {"weight_decay", 0},        {"momentum", 0},     {"dampening", 0},        {"eps", 1e-8},
      {"max_weight_norm", 65500}, {"loss_scaling", 1}, {"velocity_scaling", 1},
  };
  return values;
}
const std::set<std::string> kAlwaysConstant = {"alpha", "betas", "nesterov"};

/// Attributes of a group that decide which state is kept from step to step.
std::vector<std::string> keepingAttributes(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW: return {"amsgrad"};
    case OptimizerKind::kRmsprop: return {"centered"};
    default: return {};
  }
}

bool hasNumber(OptimizerKind kind, const char* name) {
  return std::ranges::count(optimizerRow(kind).numbers, name) > 0;
}

[[noreturn]] void refuse(Message message, options::Refused refused = options::Refused::kOtherwise) {
  throw options::OptionError(ErrorCode::E0706, std::move(message), refused);
}

double numberOf(const Attributes& optimizer, int place, const std::string& name) {
  const std::optional<double> number = optimizer.number(place, name);
  if (!number)
    refuse({.what = cat(name, " of the optimizer is ", optimizer.text(place, name)), .expected = "a number"},
           options::Refused::kCondition);
  return *number;
}

double lossScalingOf(const Attributes& optimizer) {
  return optimizer.has(kWhole, "loss_scaling") ? numberOf(optimizer, kWhole, "loss_scaling") : 1;
}

/// Checks attributes of the whole optimizer. The string "False" is true in Python, so strings are refused.
void requireWhole(const Attributes& optimizer) {
  if (optimizer.has(kWhole, "max_grad_norm")) numberOf(optimizer, kWhole, "max_grad_norm");
  for (const char* name : {"use_combined_accum", "bias_correction", "use_tf_variant"}) {
    if (!optimizer.has(kWhole, name)) continue;
    const std::string text = optimizer.text(kWhole, name);
    if (text != "True" && text != "False" && text != "1.0" && text != "0.0")
      refuse({.what = cat(name, " of the optimizer is ", text), .expected = "True or False"},
             options::Refused::kCondition);
  }
}

/// Refuses what the device cannot do. foreach gives the bits of torch's plain implementation. PopTorch ignores these.
void requireCapable(const Attributes& optimizer, int group) {
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"capturable", "torch has it for accelerators only"},
      {"differentiable", "the device does not differentiate its updates"},
  };
  for (const auto& [name, why] : kOthers)
    if (optimizer.isTrue(group, name))
      refuse(
          {.what = cat(name, "=True: ", why),
           .remedy = cat("create the optimizer without ", name, ", or use poptorch.trainingModel, which ignores it")});
}

Fields groupFields(const Attributes& optimizer, int group, bool follows_torch) {
  if (optimizer.isTrue(group, "amsgrad"))
    refuse({.what = "amsgrad=True is not supported", .remedy = "create the optimizer without it"},
           options::Refused::kValue);
  const OptimizerKind kind = optimizer.kind();
  Fields fields;
  for (const std::string& name : optimizerRow(kind).numbers)
    if (name != "beta1" && name != "beta2" && name != "nesterov") fields[name] = numberOf(optimizer, group, name);
  if (hasNumber(kind, "beta1")) {
    const auto betas = optimizer.pair(group, "betas");
    if (!betas)
      refuse({.what = cat("betas are ", optimizer.text(group, "betas")), .expected = "a tuple of two numbers"},
             options::Refused::kCondition);
    std::tie(fields["beta1"], fields["beta2"]) = *betas;
  }
  if (optimizer.has(group, "velocity_scaling")) numberOf(optimizer, group, "velocity_scaling");
  for (const char* name : {"nesterov", "maximize"}) fields[name] = optimizer.isTrue(group, name);
  for (const std::string& name : keepingAttributes(kind)) fields[name] = optimizer.isTrue(group, name);
  for (const char* name : kWholeFlags)
    if (optimizer.has(kWhole, name)) fields[name] = optimizer.isTrue(kWhole, name);
  if (!follows_torch) return fields;
  fields["fused"] = optimizer.isTrue(group, "fused");
  requireCapable(optimizer, group);
  if (const auto type = optimizer.type(group, "lr")) fields["rounds_rate"] = *type == DType::kFloat32;
  return fields;
}

/// Types of gradient sums and moments. Without a type it is the parameter's, as in torch.
void readTypes(const Attributes& optimizer, const std::vector<modules::NamedTensor>& tensors, OptimizerSpec& spec) {
  if (!optimizer.isOurs()) {
    // Notes the type even if both agree, so that either optimizer may replace the other.
    const bool is_plain = std::ranges::all_of(
        tensors, [](const modules::NamedTensor& t) { return !t.trains || t.tensor.scalar_type() == at::kFloat; });
    if (is_plain) setTypes(spec, DType::kFloat32);
    return;
  }
  for (const WholeAttribute& each : kWholeAttributes) {
    if (!each.type || !optimizer.has(kWhole, each.name)) continue;
    const std::optional<DType> type = optimizer.type(kWhole, each.name);
    if (type != DType::kFloat16 && type != DType::kFloat32)
      refuse({.what = cat(each.name, " is ", optimizer.text(kWhole, each.name)),
              .expected = "torch.float16 or torch.float32"},
             options::Refused::kValue);
    if (spec.rules.*each.type == DType::kUndefined) spec.rules.*each.type = *type;
  }
  if (spec.rules.second_moment == DType::kUndefined) spec.rules.second_moment = DType::kFloat32;
}

/// Returns true if a scheduler changes it at every step. torch's schedulers that cycle momentum, or the first beta,
/// note the limits in the groups (OneCycleLR, CyclicLR).
bool isCycled(const Attributes& optimizer, int place, const std::string& name) {
  return (name == "momentum" || name == "betas") && optimizer.has(place, "base_momentum") &&
         optimizer.has(place, "max_momentum");
}

bool isConstant(const Attributes& optimizer, int place, const std::string& name, bool follows_torch) {
  if (name == "amsgrad" || name == "centered") return true;  // they decide which state is kept
  if (isCycled(optimizer, place, name)) return false;
  if (optimizer.isOurs()) return optimizer.isConstant(name);
  if (follows_torch) return false;
  if (kAlwaysConstant.contains(name)) return true;
  const std::optional<double> value = optimizer.number(place, name);
  if (name == "weight_decay" && optimizer.kind() == OptimizerKind::kAdamW) return value == 0.01;
  const auto it = constantsOfTorch().find(name);
  return it != constantsOfTorch().end() && value == it->second;
}

/// Returns true if the two differ. Numbers of different types may be equal.
bool differs(const Attributes& optimizer, int group, const char* name) {
  const auto ours = optimizer.number(group, name), whole = optimizer.number(kWhole, name);
  return ours && whole ? *ours != *whole : optimizer.text(group, name) != optimizer.text(kWhole, name);
}

void requireAgreement(const Attributes& optimizer, int group) {
  const auto refuseGroup = [&](const char* name, const std::string& expected) {
    refuse({.what = cat(name, " is the same for all groups of an optimizer, and param_groups[", group, "] differs"),
            .found = optimizer.text(group, name),
            .expected = expected,
            .remedy = cat("leave ", name, " out of the group")});
  };
  for (const WholeAttribute& each : kWholeAttributes)
    if (optimizer.has(kWhole, each.name) && optimizer.has(group, each.name) && differs(optimizer, group, each.name))
      refuseGroup(each.name, optimizer.text(kWhole, each.name));
  const bool is_decoupled = optimizer.kind() == OptimizerKind::kAdamW;
  if (const char* name = "decoupled_weight_decay";
      optimizer.has(group, name) && optimizer.isTrue(group, name) != is_decoupled)
    refuseGroup(name, is_decoupled ? "True" : "False");
}

/// Equal for tensors with the same memory. Parameters may be parts of one storage.
using MemoryKey = std::tuple<const void*, int64_t, std::vector<int64_t>>;
MemoryKey memoryKey(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return {tensor.unsafeGetTensorImpl(), 0, {}};
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.sizes().vec()};
}

}  // namespace

OptimizerSpec numbersOf(const Attributes& optimizer, const std::vector<modules::NamedTensor>& tensors,
                        bool follows_torch) {
  OptimizerSpec spec;
  spec.loss_scaling = lossScalingOf(optimizer);
  spec.rules.kind = optimizer.kind();
  spec.rules.max_grad_norm =
      optimizer.number(kWhole, "max_grad_norm").value_or(std::numeric_limits<double>::infinity());
  readTypes(optimizer, tensors, spec);
  if (optimizer.isTrue(kWhole, "use_combined_accum")) setTypes(spec, DType::kFloat32);
  const Reading reading{.momentum_varies = optimizer.isOurs() && hasNumber(optimizer.kind(), "momentum") &&
                                           !optimizer.isConstant("momentum"),
                        .follows_torch = follows_torch};
  for (int group = 0; group < optimizer.numGroups(); ++group)
    addGroup(spec, groupFields(optimizer, group, follows_torch), reading);
  addGroup(spec, groupFields(optimizer, Attributes::kDefaults, follows_torch), reading);
  return spec;
}

void requireValues(const Attributes& optimizer, bool follows_torch) {
  requireWhole(optimizer);
  for (int group = 0; group < optimizer.numGroups(); ++group) groupFields(optimizer, group, follows_torch);
  for (int group = 0; group < optimizer.numGroups(); ++group) requireAgreement(optimizer, group);
  OptimizerSpec any;
  readTypes(optimizer, {}, any);
}

OptimizerConstants constantsOf(const Attributes& optimizer, bool scaling_varies, bool follows_torch) {
  OptimizerConstants constants;
  const OptimizerRow& row = optimizerRow(optimizer.kind());
  constants.note("type", row.name);
  constants.note("number of groups", cat(optimizer.numGroups()));
  for (const WholeAttribute& each : kWholeAttributes)
    constants.note(each.name,
                   optimizer.has(kWhole, each.name) ? optimizer.text(kWhole, each.name) : each.text_if_absent);
  if (!scaling_varies) {
    const bool is_given = optimizer.has(kWhole, "loss_scaling");
    constants.note("loss_scaling", is_given ? optimizer.text(kWhole, "loss_scaling") : "1.0",
                   !is_given || isConstant(optimizer, kWhole, "loss_scaling", follows_torch));
  }
  std::vector<std::string> names;
  for (const std::string& name : row.numbers)
    if (name != "beta2") names.push_back(name == "beta1" ? "betas" : name);
  for (const std::string& name : keepingAttributes(row.kind)) names.push_back(name);
  if (optimizer.isTrue(kWhole, "use_combined_accum")) names.emplace_back("velocity_scaling");
  for (int group = 0; group < optimizer.numGroups(); ++group)
    for (const std::string& name : names) {
      // A learning rate with its default value may change too, because schedulers change it.
      const bool is_constant =
          (name != "lr" && isConstant(optimizer, group, name, follows_torch)) || optimizer.isMarkedConstant(name);
      constants.note(cat("param_groups[", group, "]['", name, "']"), optimizer.text(group, name), is_constant);
    }
  return constants;
}

std::vector<std::vector<std::string>> namesOf(const Attributes& optimizer,
                                              const std::vector<modules::NamedTensor>& tensors) {
  std::map<MemoryKey, std::string> names;
  for (const modules::NamedTensor& t : tensors)
    if (t.is_parameter) names[memoryKey(t.tensor)] = t.name;
  std::vector<std::vector<std::string>> groups;
  for (int group = 0; group < optimizer.numGroups(); ++group) {
    groups.emplace_back();
    for (const at::Tensor& tensor : optimizer.parameters(group)) {
      const auto it = names.find(memoryKey(tensor));
      groups.back().push_back(it == names.end() ? std::string() : it->second);
    }
  }
  return groups;
}

std::vector<std::vector<std::string>> trainedNamesOf(const Attributes& optimizer,
                                                     const std::vector<modules::NamedTensor>& tensors) {
  std::set<std::string> open;  // trainable parameters that are in no group yet
  for (const modules::NamedTensor& t : tensors)
    if (t.trains) open.insert(t.name);
  std::vector<std::vector<std::string>> groups;
  for (const std::vector<std::string>& names : namesOf(optimizer, tensors)) {
    const int group = static_cast<int>(groups.size());
    groups.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].empty())
        refuse({.what = cat("param_groups[", group, "]['params'][", i, "] is not a parameter of the model"),
                .found = cat("a tensor of shape [", joined(optimizer.parameters(group).at(i).sizes()), "]"),
                .remedy = "build the optimizer from model.parameters() of the model that is wrapped"});
      if (open.erase(names[i]) > 0) groups.back().push_back(names[i]);
    }
  }
  groups.emplace_back();
  for (const modules::NamedTensor& t : tensors)
    if (open.erase(t.name) > 0) groups.back().push_back(t.name);  // the list may have a tensor twice
  return groups;
}

compile::OptimizerSpec specOf(const Attributes& optimizer, const std::vector<modules::NamedTensor>& tensors,
                              bool follows_torch) {
  std::vector<std::vector<std::string>> groups = trainedNamesOf(optimizer, tensors);
  const std::vector<std::string>& others = groups.back();
  if (others.empty() || follows_torch) {
    groups.pop_back();
  } else {
    log::warn(others.size(),
              " trainable parameters are in no group of the optimizer and are updated with its defaults: ",
              joined(std::span(others).first(std::min<size_t>(others.size(), 5))));
  }
  return withParameters(numbersOf(optimizer, tensors, follows_torch), groups);
}

}  // namespace abele::optimizer
