// abele::optim structs -> OptimizerSpec, and back. The checks are torch.optim's.
#include "abele/optim.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/joined.h"
#include "modules/module.h"
#include "optimizer/optimizer.h"
#include "optimizer/optimizer_fields.h"

namespace abele::optimizer {
namespace {

using Kind = passes::OptimizerRules::Kind;

#define ABELE_OPTIMIZER(kind, Name, ...) \
  Kind kindOf(const optim::Name&) { return Kind::kind; }
#include "base/optimizers.def"

/// Visits the flags that are not numbers of the instruction.
template <class Group, class Visit>
void visitFlags(Group& group, Visit visit) {
  if constexpr (requires { group.centered; }) visit("centered", group.centered);
  if constexpr (requires { group.use_tf_variant; }) visit("use_tf_variant", group.use_tf_variant);
  if constexpr (requires { group.bias_correction; }) visit("bias_correction", group.bias_correction);
  if constexpr (requires { group.fused; }) visit("fused", group.fused);
  if constexpr (requires { group.libtorch; }) visit("libtorch", group.libtorch);
}

double inRange(const char* name, double value, NumberRange range) {
  const bool is_beta = range == NumberRange::kBelowOne;
  ABELE_REQUIRE(range == NumberRange::kAny || (value >= 0 && (!is_beta || value < 1)), E0706,
                {.what = cat(name, " is ", value),
                 .expected = is_beta ? "0 <= beta < 1" : "0 or more",
                 .remedy = cat("pass a ", name, is_beta ? " such as 0.9" : " of 0 or more")});
  return value;
}

template <class Group>
Fields groupFields(const Group& group) {
  Fields fields;
#define ABELE_HYPER(name, type, value, range) \
  if constexpr (requires { group.name; }) fields[#name] = inRange(#name, group.name, NumberRange::range);
#include "base/optimizers.def"
  visitFlags(group, [&fields](const char* name, bool flag) { fields[name] = flag; });
  if constexpr (requires { group.nesterov; })
    ABELE_REQUIRE(!group.nesterov || (group.momentum > 0 && group.dampening == 0), E0706,
                  {.what = "nesterov needs a momentum and no dampening",
                   .found = cat("momentum ", group.momentum, ", dampening ", group.dampening),
                   .expected = "momentum > 0 and dampening 0",
                   .remedy = "set momentum to 0.9 and dampening to 0"});
  return fields;
}

/// "encoder" covers "encoder" and all names that begin with "encoder.".
bool covers(const std::string& path, const std::string& name) {
  return name == path || (name.size() > path.size() && name.starts_with(path) && name[path.size()] == '.');
}

/// The group of each trainable parameter that a group's paths name.
using Groups = std::map<std::string, size_t>;

void assign(Groups& groups, size_t index, const std::vector<std::string>& paths,
            const std::vector<modules::NamedTensor>& tensors) {
  for (const std::string& path : paths) {
    bool found = false;
    for (const modules::NamedTensor& t : tensors) {
      if (!t.is_parameter || !covers(path, t.name)) continue;
      found = true;
      if (!t.trains) continue;
      auto [place, added] = groups.emplace(t.name, index);
      ABELE_REQUIRE(added || place->second == index, E0706,
                    {.what = cat("parameter ", t.name, " is in two groups"),
                     .found = cat("groups ", place->second, " and ", index),
                     .expected = "one group",
                     .remedy = "narrow the paths of one of them"});
    }
    ABELE_REQUIRE(found, E0706,
                  {.what = cat("parameter group ", index, " names \"", path, "\", which is not in the model"),
                   .expected = "a parameter or module path of the model",
                   .remedy = "use a name of named_parameters()"});
  }
}

/// Names of the parameters, by group.
template <class Group>
std::vector<std::vector<std::string>> parametersOf(const std::vector<Group>& groups,
                                                   const std::vector<modules::NamedTensor>& tensors) {
  ABELE_REQUIRE(!groups.empty(), E0706, {.what = "an optimizer without parameter groups", .remedy = "pass one group"});
  Groups group_of;
  std::optional<size_t> rest;
  for (size_t i = 0; i < groups.size(); ++i) {
    assign(group_of, i, groups[i].parameters, tensors);
    if (!groups[i].parameters.empty()) continue;
    ABELE_REQUIRE(!rest, E0706,
                  {.what = "two parameter groups take all remaining parameters",
                   .found = cat("groups ", *rest, " and ", i),
                   .expected = "at most one",
                   .remedy = "name the parameters of one of them"});
    rest = i;
  }
  if (rest)
    for (const modules::NamedTensor& t : tensors)
      if (t.trains) group_of.emplace(t.name, *rest);
  std::vector<std::vector<std::string>> parameters(groups.size());
  for (const auto& [name, index] : group_of) parameters[index].push_back(name);
  return parameters;
}

struct TypeField {
  const char* name;
  std::optional<FloatType> optim::Optimizer::*given;
  DType passes::OptimizerRules::*type;
};
constexpr TypeField kTypes[] = {
    {"accum_type", &optim::Optimizer::accum_type, &passes::OptimizerRules::accumulator},
    {"first_order_momentum_accum_type", &optim::Optimizer::first_order_momentum_accum_type,
     &passes::OptimizerRules::first_moment},
    {"second_order_momentum_accum_type", &optim::Optimizer::second_order_momentum_accum_type,
     &passes::OptimizerRules::second_moment},
    // A velocity is a first moment.
    {"velocity_accum_type", &optim::Optimizer::velocity_accum_type, &passes::OptimizerRules::first_moment},
};

/// The spec without parameters.
OptimizerSpec numbersOf(const optim::Optimizer& optimizer) {
  OptimizerSpec spec;
  if (optimizer.step_on_host) {
    const bool is_plain = optimizer.loss_scaling == 1 && std::isinf(optimizer.max_grad_norm) && !optimizer.accum_type;
    ABELE_REQUIRE(is_plain, E0706,
                  {.what = "loss_scaling, max_grad_norm or accum_type of an optimizer that updates on the host",
                   .remedy = "leave them out: scale the loss in forward, and clip gradients in step()"});
    return spec;
  }
  spec.loss_scaling = optimizer.loss_scaling;
  spec.rules.max_grad_norm = optimizer.max_grad_norm;
  std::visit(
      [&](const auto& groups) {
        spec.rules.kind = kindOf(typename std::decay_t<decltype(groups)>::value_type());
        for (const auto& group : groups)
          addGroup(spec, groupFields(group),
                   {.momentum_varies = optimizer.variable_attrs.isMarkedVariable("momentum")});
      },
      optimizer.groups);
  for (const auto& [name, given, type] : kTypes) {
    const std::optional<FloatType>& field = optimizer.*given;
    if (!field) continue;
    ABELE_REQUIRE(*field == FloatType::kFloat || *field == FloatType::kHalf, E0706,
                  {.what = cat(name, " is neither float nor half"), .expected = "FloatType::kFloat or kHalf"});
    spec.rules.*type = *field == FloatType::kHalf ? DType::kFloat16 : DType::kFloat32;
  }
  if (optimizer.use_combined_accum) setTypes(spec, DType::kFloat32);
  return spec;
}

template <class Group>
void take(const Fields& fields, Group& group) {
  const auto set = [&fields](const char* name, auto& field) {
    const auto it = fields.find(name);
    if (it != fields.end()) field = static_cast<std::remove_reference_t<decltype(field)>>(it->second);
  };
#define ABELE_HYPER(name, ...) \
  if constexpr (requires { group.name; }) set(#name, group.name);
#include "base/optimizers.def"
  visitFlags(group, set);
}

template <class Group>
optim::Optimizer groupsOf(const OptimizerSpec& spec) {
  std::vector<Group> groups(spec.groups.size());
  for (size_t i = 0; i < groups.size(); ++i) take(fieldsOf(spec, i), groups[i]);
  for (const auto& [name, index] : spec.rules.group_of) groups[static_cast<size_t>(index)].parameters.push_back(name);
  return optim::Optimizer(std::move(groups));
}

}  // namespace

OptimizerConstants constantsOf(const optim::Optimizer& optimizer, bool scaling_varies) {
  OptimizerConstants constants(OptimizerConstants::Marks::kOfCompiled);
  const optim::VariableAttributes& marks = optimizer.variable_attrs;
  if (!scaling_varies) constants.note("loss_scaling", cat(optimizer.loss_scaling), marks.isConstant("loss_scaling"));
  const std::vector<Fields> groups = numbersOf(optimizer).groups;
  for (size_t i = 0; i < groups.size(); ++i)
    for (const auto& [name, value] : groups[i]) {
      const bool is_constant = marks.isConstant(name) || (name.starts_with("beta") && marks.isConstant("betas"));
      constants.note(cat("param_groups[", i, "]['", name, "']"), cat(value), is_constant);
    }
  return constants;
}

optim::Optimizer optimizerOf(const compile::OptimizerSpec& spec) {
  const auto make = [&]() -> optim::Optimizer {
    switch (spec.rules.kind) {
#define ABELE_OPTIMIZER(kind, Name, ...) \
  case Kind::kind: return groupsOf<optim::Name>(spec);
#include "base/optimizers.def"
      case Kind::kNone: break;
    }
    throwUser(ErrorCode::E0706, {.what = "the program has no optimizer"});
  };
  optim::Optimizer optimizer = make();
  if (momentumVaries(spec)) optimizer.variable_attrs.markAsVariable("momentum");
  optimizer.loss_scaling = spec.loss_scaling;
  optimizer.max_grad_norm = spec.rules.max_grad_norm;
  for (const auto& [name, given, type] : kTypes)
    if (spec.rules.*type != DType::kUndefined && given != &optim::Optimizer::velocity_accum_type)
      optimizer.*given = spec.rules.*type == DType::kFloat16 ? FloatType::kHalf : FloatType::kFloat;
  return optimizer;
}

compile::OptimizerSpec optimizerSpec(const optim::Optimizer& optimizer,
                                     const std::vector<modules::NamedTensor>& tensors) {
  OptimizerSpec numbers = numbersOf(optimizer);
  if (optimizer.step_on_host) return numbers;  // the program ends with the gradients
  return withParameters(
      std::move(numbers),
      std::visit([&](const auto& groups) { return parametersOf(groups, tensors); }, optimizer.groups));
}

}  // namespace abele::optimizer

namespace abele::optim {
namespace {

void requireKnown(const std::string& attribute) {
#define ABELE_HYPER(name, ...) #name,
  static const std::set<std::string> known = {
#include "base/optimizers.def"
      "betas", "loss_scaling"};
  ABELE_REQUIRE(known.contains(attribute), E0706,
                {.what = cat(attribute, " is not an attribute of an optimizer"), .expected = joined(known)});
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
