// abele::optim structs -> OptimizerSpec. The checks are torch.optim's.
#include "abele/optim.h"

#include <algorithm>
#include <set>
#include <type_traits>

#include "base/error.h"
#include "model/access.h"

namespace abele::host {
namespace {

using Kind = passes::OptimizerRules::Kind;
using Hypers = std::map<std::string, double>;

void requireNotNegative(const char* name, double value) {
  ABELE_REQUIRE(
      value >= 0, E0706,
      {.what = cat(name, " is ", value), .expected = "0 or more", .remedy = cat("pass a ", name, " of 0 or more")});
}

void requireBeta(const char* name, double value) {
  ABELE_REQUIRE(
      value >= 0 && value < 1, E0706,
      {.what = cat(name, " is ", value), .expected = "0 <= beta < 1", .remedy = cat("pass a ", name, " such as 0.9")});
}

Kind kindOf(const optim::SGD&) { return Kind::kSgd; }
Kind kindOf(const optim::Adam&) { return Kind::kAdam; }
Kind kindOf(const optim::AdamW&) { return Kind::kAdamW; }
Kind kindOf(const optim::RMSprop&) { return Kind::kRmsprop; }
Kind kindOf(const optim::LAMB&) { return Kind::kLamb; }

/// torch's dampening shows where a velocity is kept: in its first step. Without momentum there is none.
passes::OptimizerRules::Group rulesOf(const optim::SGD& group, bool momentum_varies) {
  const bool keeps = momentum_varies || group.momentum != 0;
  return {.momentum = keeps, .torch_dampening = keeps && (group.dampening != 0 || group.momentum == 0)};
}
passes::OptimizerRules::Group rulesOf(const optim::RMSprop& group, bool momentum_varies) {
  return {.momentum = momentum_varies || group.momentum != 0,
          .centered = group.centered,
          .tf_variant = group.use_tf_variant};
}
passes::OptimizerRules::Group rulesOf(const optim::LAMB& group, bool) {
  return {.bias_correction = group.bias_correction};
}
template <class AdamLike>
passes::OptimizerRules::Group rulesOf(const AdamLike&, bool) {
  return {};
}

Hypers hypersOf(const optim::SGD& group) {
  requireNotNegative("lr", group.lr);
  requireNotNegative("momentum", group.momentum);
  requireNotNegative("weight_decay", group.weight_decay);
  ABELE_REQUIRE(!group.nesterov || (group.momentum > 0 && group.dampening == 0), E0706,
                {.what = "nesterov needs a momentum and no dampening",
                 .found = cat("momentum ", group.momentum, ", dampening ", group.dampening),
                 .expected = "momentum > 0 and dampening 0",
                 .remedy = "set momentum to 0.9 and dampening to 0"});
  return {{"lr", group.lr},
          {"momentum", group.momentum},
          {"dampening", group.momentum == 0 ? 0 : group.dampening},
          {"weight_decay", group.weight_decay},
          {"nesterov", group.nesterov ? 1.0 : 0.0},
          {"maximize", group.maximize ? 1.0 : 0.0}};
}

Hypers hypersOf(const optim::RMSprop& group) {
  requireNotNegative("lr", group.lr);
  requireNotNegative("alpha", group.alpha);
  requireNotNegative("eps", group.eps);
  requireNotNegative("weight_decay", group.weight_decay);
  requireNotNegative("momentum", group.momentum);
  return {{"lr", group.lr},
          {"alpha", group.alpha},
          {"eps", group.eps},
          {"weight_decay", group.weight_decay},
          {"momentum", group.momentum},
          {"maximize", group.maximize ? 1.0 : 0.0}};
}

template <class AdamLike>
Hypers hypersOf(const AdamLike& group) {
  requireNotNegative("lr", group.lr);
  requireNotNegative("eps", group.eps);
  requireNotNegative("weight_decay", group.weight_decay);
  requireBeta("beta1", group.beta1);
  requireBeta("beta2", group.beta2);
  Hypers hypers = {{"lr", group.lr},
                   {"beta1", group.beta1},
                   {"beta2", group.beta2},
                   {"eps", group.eps},
                   {"weight_decay", group.weight_decay},
                   {"maximize", group.maximize ? 1.0 : 0.0}};
  if constexpr (std::is_same_v<AdamLike, optim::LAMB>) hypers["max_weight_norm"] = group.max_weight_norm;
  return hypers;
}

/// "encoder" takes "encoder" and all below "encoder.".
bool covers(const std::string& path, const std::string& name) {
  return name == path || (name.size() > path.size() && name.starts_with(path) && name[path.size()] == '.');
}

/// Puts the trainable parameters that `paths` names into group `index`.
void assign(passes::OptimizerRules& rules, int index, const std::vector<std::string>& paths,
            const std::vector<NamedTensor>& tensors) {
  for (const std::string& path : paths) {
    bool found = false;
    for (const NamedTensor& t : tensors) {
      if (!t.is_parameter || !covers(path, t.name)) continue;
      found = true;
      if (!t.trains) continue;
      auto [place, added] = rules.group_of.emplace(t.name, index);
      ABELE_REQUIRE(added || place->second == index, E0706,
                    {.what = cat("parameter ", t.name, " is in two groups"),
                     .found = cat("groups ", place->second, " and ", index),
                     .expected = "one group",
                     .remedy = "narrow the paths of one of them"});
    }
    ABELE_REQUIRE(found, E0706,
                  {.what = cat("parameter group ", index, " names \"", path, "\", which is no part of the model"),
                   .expected = "a parameter or module path of the model",
                   .remedy = "use a name as named_parameters() gives it"});
  }
}

template <class Group>
OptimizerSpec specOf(const std::vector<Group>& groups, bool momentum_varies, const std::vector<NamedTensor>& tensors) {
  ABELE_REQUIRE(!groups.empty(), E0706, {.what = "an optimizer without parameter groups", .remedy = "pass one group"});
  OptimizerSpec spec;
  spec.rules.kind = kindOf(groups[0]);
  int rest = -1;
  for (size_t i = 0; i < groups.size(); ++i) {
    spec.rules.groups.push_back(rulesOf(groups[i], momentum_varies));
    spec.groups.push_back(hypersOf(groups[i]));
    assign(spec.rules, static_cast<int>(i), groups[i].parameters, tensors);
    if (!groups[i].parameters.empty()) continue;
    ABELE_REQUIRE(rest < 0, E0706,
                  {.what = "two parameter groups take all remaining parameters",
                   .found = cat("groups ", rest, " and ", i),
                   .expected = "at most one",
                   .remedy = "name the parameters of one of them"});
    rest = static_cast<int>(i);
  }
  if (rest >= 0)
    for (const NamedTensor& t : tensors)
      if (t.trains) spec.rules.group_of.emplace(t.name, rest);
  return spec;
}

DType stateType(const char* name, const std::optional<FloatType>& type) {
  if (!type) return DType::kUndefined;
  ABELE_REQUIRE(*type == FloatType::kFloat || *type == FloatType::kHalf, E0706,
                {.what = cat(name, " is neither float nor half"), .expected = "FloatType::kFloat or kHalf"});
  return *type == FloatType::kHalf ? DType::kFloat16 : DType::kFloat32;
}

void setStateTypes(const optim::Optimizer& optimizer, passes::OptimizerRules& rules) {
  rules.accumulator = stateType("accum_type", optimizer.accum_type);
  rules.first_moment = optimizer.velocity_accum_type
                           ? stateType("velocity_accum_type", optimizer.velocity_accum_type)
                           : stateType("first_order_momentum_accum_type", optimizer.first_order_momentum_accum_type);
  rules.second_moment = stateType("second_order_momentum_accum_type", optimizer.second_order_momentum_accum_type);
  if (optimizer.use_combined_accum) rules.accumulator = rules.first_moment = rules.second_moment = DType::kFloat32;
}

std::vector<Hypers> valuesOf(const optim::Optimizer& optimizer) {
  std::vector<Hypers> values;
  std::visit(
      [&](const auto& groups) {
        for (const auto& group : groups) values.push_back(hypersOf(group));
      },
      optimizer.groups);
  return values;
}

template <class Group>
void takeHypers(const Hypers& hypers, Group& group) {
  const auto take = [&hypers](const char* name, auto& field) {
    const auto it = hypers.find(name);
    if (it != hypers.end()) field = static_cast<std::remove_reference_t<decltype(field)>>(it->second);
  };
  take("lr", group.lr);
  take("weight_decay", group.weight_decay);
  take("maximize", group.maximize);
  if constexpr (requires { group.momentum; }) take("momentum", group.momentum);
  if constexpr (requires { group.dampening; }) take("dampening", group.dampening);
  if constexpr (requires { group.nesterov; }) take("nesterov", group.nesterov);
  if constexpr (requires { group.beta1; }) {
    take("beta1", group.beta1);
    take("beta2", group.beta2);
  }
  if constexpr (requires { group.eps; }) take("eps", group.eps);
  if constexpr (requires { group.alpha; }) take("alpha", group.alpha);
  if constexpr (requires { group.max_weight_norm; }) take("max_weight_norm", group.max_weight_norm);
}

template <class Group>
optim::Optimizer groupsOf(const OptimizerSpec& spec) {
  std::vector<Group> groups(spec.groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    takeHypers(spec.groups[i], groups[i]);
    const passes::OptimizerRules::Group& rules = spec.rules.groups[i];
    if constexpr (requires { groups[i].centered; }) groups[i].centered = rules.centered;
    if constexpr (requires { groups[i].use_tf_variant; }) groups[i].use_tf_variant = rules.tf_variant;
    if constexpr (requires { groups[i].bias_correction; }) groups[i].bias_correction = rules.bias_correction;
  }
  for (const auto& [name, index] : spec.rules.group_of) groups[index].parameters.push_back(name);
  optim::Optimizer optimizer(std::move(groups));
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const auto momentum = spec.groups[i].find("momentum");
    const bool is_zero = momentum != spec.groups[i].end() && momentum->second == 0;
    if (spec.rules.groups[i].momentum && is_zero) optimizer.variable_attrs.markAsVariable("momentum");
  }
  return optimizer;
}

std::optional<FloatType> floatTypeOf(DType type) {
  if (type == DType::kUndefined) return std::nullopt;
  return type == DType::kFloat16 ? FloatType::kHalf : FloatType::kFloat;
}

}  // namespace

void requireSameConstants(const optim::Optimizer& compiled, const optim::Optimizer& given) {
  const auto require = [&](const std::string& name, double before, double now) {
    const bool constant = compiled.variable_attrs.isConstant(name) ||
                          (name.starts_with("beta") && compiled.variable_attrs.isConstant("betas"));
    ABELE_REQUIRE(!constant || before == now, E0706,
                  {.what = cat(name, " is fixed in the compiled program"),
                   .found = cat(now),
                   .expected = cat(before),
                   .remedy = "do not mark it as constant, or destroy() the model first"});
  };
  require("loss_scaling", compiled.loss_scaling, given.loss_scaling);
  const std::vector<Hypers> before = valuesOf(compiled), now = valuesOf(given);
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i)
    for (const auto& [name, value] : before[i])
      if (const auto it = now[i].find(name); it != now[i].end()) require(name, value, it->second);
}

optim::Optimizer optimizerOf(const OptimizerSpec& spec) {
  const auto make = [&spec]() -> optim::Optimizer {
    switch (spec.rules.kind) {
      case Kind::kSgd: return groupsOf<optim::SGD>(spec);
      case Kind::kAdam: return groupsOf<optim::Adam>(spec);
      case Kind::kAdamW: return groupsOf<optim::AdamW>(spec);
      case Kind::kRmsprop: return groupsOf<optim::RMSprop>(spec);
      case Kind::kLamb: return groupsOf<optim::LAMB>(spec);
      case Kind::kNone: break;
    }
    throwUser(ErrorCode::E0706, {.what = "the program has no optimizer"});
  };
  optim::Optimizer optimizer = make();
  optimizer.loss_scaling = spec.loss_scaling;
  optimizer.max_grad_norm = spec.rules.max_grad_norm;
  optimizer.accum_type = floatTypeOf(spec.rules.accumulator);
  optimizer.first_order_momentum_accum_type = floatTypeOf(spec.rules.first_moment);
  optimizer.second_order_momentum_accum_type = floatTypeOf(spec.rules.second_moment);
  return optimizer;
}

OptimizerSpec optimizerSpec(const optim::Optimizer& optimizer, const std::vector<NamedTensor>& tensors) {
  OptimizerSpec spec = std::visit(
      [&](const auto& groups) {
        return specOf(groups, optimizer.variable_attrs.isMarkedVariable("momentum"), tensors);
      },
      optimizer.groups);
  const auto requirePositive = [](const char* name, double value) {
    ABELE_REQUIRE(value > 0, E0706,
                  {.what = cat(name, " is ", value),
                   .expected = "a positive number",
                   .remedy = cat("leave ", name, " at its default")});
  };
  requirePositive("loss_scaling", optimizer.loss_scaling);
  requirePositive("max_grad_norm", optimizer.max_grad_norm);
  spec.loss_scaling = optimizer.loss_scaling;
  spec.rules.max_grad_norm = optimizer.max_grad_norm;
  setStateTypes(optimizer, spec.rules);
  return spec;
}

}  // namespace abele::host

namespace abele::optim {
namespace {

void requireKnown(const std::string& attribute) {
  static const std::set<std::string> known = {
      "lr",  "momentum", "dampening", "weight_decay", "nesterov", "beta1",          "beta2",
      "eps", "alpha",    "maximize",  "loss_scaling", "betas",    "max_weight_norm"};
  std::string all;
  for (const std::string& name : known) all += cat(all.empty() ? "" : ", ", name);
  ABELE_REQUIRE(known.contains(attribute), E0706,
                {.what = cat(attribute, " is no attribute of an optimizer"), .expected = all});
}

}  // namespace

bool VariableAttributes::isConstant(const std::string& attribute) const { return constant_.contains(attribute); }
void VariableAttributes::markAsConstant(const std::string& attribute) {
  requireKnown(attribute);
  constant_.insert(attribute);
  variable_.erase(attribute);
}
void VariableAttributes::markAsVariable(const std::string& attribute) {
  requireKnown(attribute);
  variable_.insert(attribute);
  constant_.erase(attribute);
}

}  // namespace abele::optim
