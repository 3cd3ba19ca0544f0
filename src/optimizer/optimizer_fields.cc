#include "optimizer/optimizer_fields.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/optimizers.h"

namespace abele::optimizer {
namespace {

bool isSame(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double valueOf(const Fields& fields, const char* name, double otherwise = 0) {
  const auto it = fields.find(name);
  return it == fields.end() ? otherwise : it->second;
}

/// The fields of a group decide which state its parameters have.
OptimizerGroup rulesOf(const OptimizerFields& optimizer, const Fields& group, const Fields& numbers) {
  OptimizerGroup rules;
  const double momentum = valueOf(numbers, "momentum");
  // Under PopTorch's rules dampening shrinks gradients even without momentum, so a velocity is needed for it.
  rules.momentum = numbers.contains("momentum") &&
                   (momentum != 0 || valueOf(numbers, "dampening") != 0 || optimizer.momentum_varies);
  // torch's dampening has an effect only if a velocity is kept, in its first step.
  rules.torch_dampening = optimizer.follows_torch && optimizer.kind == OptimizerKind::kSgd && rules.momentum &&
                          (valueOf(group, "dampening") != 0 || momentum == 0);
  rules.centered = valueOf(group, "centered") != 0;
  rules.tf_variant = valueOf(group, "use_tf_variant") != 0;
  const bool corrects_bias = optimizerRow(optimizer.kind).flag.property == &OptimizerGroup::bias_correction;
  rules.bias_correction = !corrects_bias || valueOf(group, "bias_correction", 1) != 0;
  return rules;
}

void setTypes(const OptimizerFields& optimizer, passes::OptimizerRules& rules) {
  const auto typeOf = [&optimizer](const char* name) {
    const auto it = optimizer.types.find(name);
    return it == optimizer.types.end() ? DType::kUndefined : it->second;
  };
  rules.accumulator = typeOf("accum_type");
  rules.first_moment = typeOf(optimizer.types.contains("velocity_accum_type") ? "velocity_accum_type"
                                                                              : "first_order_momentum_accum_type");
  rules.second_moment = typeOf("second_order_momentum_accum_type");
  if (optimizer.use_combined_accum) rules.accumulator = rules.first_moment = rules.second_moment = DType::kFloat32;
}

}  // namespace

Fields numbersOf(const OptimizerFields& optimizer, const Fields& group) {
  const OptimizerRow& row = optimizerRow(optimizer.kind);
  Fields numbers;
  const auto take = [&](const std::string& name) {
    if (const auto it = group.find(name); it != group.end()) numbers.insert(*it);
  };
  for (const std::string& name : row.numbers) take(name);
  take("maximize");
  if (!optimizer.follows_torch) return numbers;
  if (const auto fused = group.find("fused"); fused != group.end())
    numbers["fused"] = (row.traits & kFused) != 0 && fused->second != 0;
  // Leaves the field out if it is off, as programs of Python do.
  if (valueOf(group, "libtorch") != 0) take("libtorch");
  if (optimizer.kind == OptimizerKind::kAdam || optimizer.kind == OptimizerKind::kAdamW) take("rounds_rate");
  if (optimizer.kind == OptimizerKind::kSgd && valueOf(numbers, "momentum") == 0) numbers["dampening"] = 0;
  return numbers;
}

compile::OptimizerSpec specOf(const OptimizerFields& optimizer,
                              const std::vector<std::vector<std::string>>& parameters) {
  const auto require = [](bool holds, const char* name, double value, const char* expected) {
    ABELE_REQUIRE(
        holds, E0706,
        {.what = cat(name, " is ", value), .expected = expected, .remedy = cat("leave ", name, " at its default")});
  };
  require(optimizer.loss_scaling > 0 && optimizer.loss_scaling < std::numeric_limits<double>::infinity(),
          "loss_scaling", optimizer.loss_scaling, "a positive, finite number");
  require(optimizer.max_grad_norm > 0, "max_grad_norm", optimizer.max_grad_norm, "a positive number, or infinity");
  compile::OptimizerSpec spec;
  spec.rules.kind = optimizer.kind;
  spec.loss_scaling = optimizer.loss_scaling;
  spec.rules.max_grad_norm = optimizer.max_grad_norm;
  setTypes(optimizer, spec.rules);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Fields& group = optimizer.groups.at(i);
    spec.groups.push_back(numbersOf(optimizer, group));
    spec.rules.groups.push_back(rulesOf(optimizer, group, spec.groups.back()));
    for (const std::string& name : parameters[i]) spec.rules.group_of[name] = static_cast<int>(i);
  }
  return spec;
}

OptimizerFields fieldsOf(const compile::OptimizerSpec& spec) {
  OptimizerFields optimizer{
      .kind = spec.rules.kind, .loss_scaling = spec.loss_scaling, .max_grad_norm = spec.rules.max_grad_norm};
  const auto setType = [&optimizer](const char* name, DType type) {
    if (type != DType::kUndefined) optimizer.types[name] = type;
  };
  setType("accum_type", spec.rules.accumulator);
  setType("first_order_momentum_accum_type", spec.rules.first_moment);
  setType("second_order_momentum_accum_type", spec.rules.second_moment);
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const OptimizerGroup& rules = spec.rules.groups[i];
    Fields& group = optimizer.groups.emplace_back(spec.groups[i]);
    optimizer.momentum_varies |= rules.momentum && valueOf(group, "momentum") == 0;
    group["centered"] = rules.centered;
    group["use_tf_variant"] = rules.tf_variant;
    group["bias_correction"] = rules.bias_correction;
  }
  return optimizer;
}

bool haveSameNumbers(const OptimizerFields& a, const OptimizerFields& b) {
  const auto fieldsAreEqual = [](const Fields::value_type& one, const Fields::value_type& other) {
    return one.first == other.first && isSame(one.second, other.second);
  };
  const auto numbersAreEqual = [&](const Fields& one, const Fields& other) {
    return std::ranges::equal(numbersOf(a, one), numbersOf(b, other), fieldsAreEqual);
  };
  return a.kind == b.kind && isSame(a.loss_scaling, b.loss_scaling) &&
         std::ranges::equal(a.groups, b.groups, numbersAreEqual);
}

std::string firstDifference(const OptimizerFields& sent, const OptimizerFields& now) {
  if (haveSameNumbers(sent, now)) return {};
  if (!isSame(sent.loss_scaling, now.loss_scaling)) return "loss_scaling";
  if (sent.kind != now.kind || sent.groups.size() != now.groups.size()) return "the number of parameter groups";
  for (size_t group = 0; group + 1 < now.groups.size(); ++group) {
    const Fields before = numbersOf(sent, sent.groups[group]), after = numbersOf(now, now.groups[group]);
    std::vector<std::string> names = optimizerRow(now.kind).numbers;
    for (const auto& [name, value] : after) names.push_back(name);  // fields in no row, such as maximize
    for (const std::string& name : names) {
      const auto old = before.find(name), young = after.find(name);
      const bool is_same =
          old == before.end() ? young == after.end() : young != after.end() && isSame(old->second, young->second);
      if (!is_same) return cat(name, " of param_groups[", group, "]");
    }
  }
  return {};
}

}  // namespace abele::optimizer
