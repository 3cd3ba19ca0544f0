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

#define ABELE_OPTIMIZER(kind, Name, ...) \
  Kind kindOf(const optim::Name&) { return Kind::kind; }
#include "base/optimizers.def"

/// What a group has decides what is kept of its parameters.
template <class Group>
passes::OptimizerRules::Group rulesOf(const Group& group, bool momentum_varies) {
  passes::OptimizerRules::Group rules;
  if constexpr (requires { group.momentum; }) rules.momentum = momentum_varies || group.momentum != 0;
  // torch's dampening shows where a velocity is kept: in its first step. Without momentum there is none.
  if constexpr (requires { group.dampening; })
    rules.torch_dampening = rules.momentum && (group.dampening != 0 || group.momentum == 0);
  if constexpr (requires { group.centered; }) rules.centered = group.centered;
  if constexpr (requires { group.use_tf_variant; }) rules.tf_variant = group.use_tf_variant;
  if constexpr (requires { group.bias_correction; }) rules.bias_correction = group.bias_correction;
  return rules;
}

double inRange(const char* name, double value, NumberRange range) {
  if (range == NumberRange::kNotNegative) requireNotNegative(name, value);
  if (range == NumberRange::kBelowOne) requireBeta(name, value);
  return value;
}

template <class Group>
Hypers hypersOf(const Group& group) {
  Hypers hypers;
#define ABELE_HYPER(name, type, value, range) \
  if constexpr (requires { group.name; }) hypers[#name] = inRange(#name, group.name, NumberRange::range);
#include "base/optimizers.def"
  if constexpr (requires { group.nesterov; })
    ABELE_REQUIRE(!group.nesterov || (group.momentum > 0 && group.dampening == 0), E0706,
                  {.what = "nesterov needs a momentum and no dampening",
                   .found = cat("momentum ", group.momentum, ", dampening ", group.dampening),
                   .expected = "momentum > 0 and dampening 0",
                   .remedy = "set momentum to 0.9 and dampening to 0"});
  if constexpr (requires { group.dampening; })
    if (group.momentum == 0) hypers["dampening"] = 0;
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
#define ABELE_HYPER(name, ...) \
  if constexpr (requires { group.name; }) take(#name, group.name);
#include "base/optimizers.def"
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
#define ABELE_OPTIMIZER(kind, Name, ...) \
  case Kind::kind: return groupsOf<optim::Name>(spec);
#include "base/optimizers.def"
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
#define ABELE_HYPER(name, ...) #name,
  static const std::set<std::string> known = {
#include "base/optimizers.def"
      "betas", "loss_scaling"};
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
