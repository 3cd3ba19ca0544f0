#include "optimizer/optimizer_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/optimizers.h"

namespace abele::optimizer {
namespace {

bool isSame(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double valueOf(const Fields& fields, const char* name, double otherwise = 0) {
  const auto it = fields.find(name);
  return it == fields.end() ? otherwise : it->second;
}

/// The numbers of a group that the device gets.
Fields numbersOf(OptimizerKind kind, const Fields& group, bool follows_torch) {
  const OptimizerRow& row = optimizerRow(kind);
  Fields numbers;
  const auto take = [&](const std::string& name) {
    if (const auto it = group.find(name); it != group.end()) numbers.insert(*it);
  };
  for (const std::string& name : row.numbers) take(name);
  take("maximize");
  if (!follows_torch) return numbers;
  if (const auto fused = group.find("fused"); fused != group.end())
    numbers["fused"] = (row.traits & kFused) != 0 && fused->second != 0;
  // Leaves the field out if it is off, as programs of Python do.
  if (valueOf(group, "libtorch") != 0) take("libtorch");
  if (kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamW) take("rounds_rate");
  if (kind == OptimizerKind::kSgd && valueOf(numbers, "momentum") == 0) numbers["dampening"] = 0;
  return numbers;
}

}  // namespace

void addGroup(OptimizerSpec& spec, const Fields& group, const Reading& reading) {
  const OptimizerKind kind = spec.rules.kind;
  const Fields& numbers = spec.groups.emplace_back(numbersOf(kind, group, reading.follows_torch));
  // The fields of a group decide which state its parameters have.
  OptimizerGroup& rules = spec.rules.groups.emplace_back();
  const double momentum = valueOf(numbers, "momentum");
  // Under PopTorch's rules dampening shrinks gradients even without momentum, so a velocity is needed for it.
  rules.momentum =
      numbers.contains("momentum") && (momentum != 0 || valueOf(numbers, "dampening") != 0 || reading.momentum_varies);
  // torch's dampening has an effect only if a velocity is kept, in its first step.
  rules.torch_dampening = reading.follows_torch && kind == OptimizerKind::kSgd && rules.momentum &&
                          (valueOf(group, "dampening") != 0 || momentum == 0);
  rules.centered = valueOf(group, "centered") != 0;
  rules.tf_variant = valueOf(group, "use_tf_variant") != 0;
  const bool corrects_bias = optimizerRow(kind).flag.property == &OptimizerGroup::bias_correction;
  rules.bias_correction = !corrects_bias || valueOf(group, "bias_correction", 1) != 0;
}

OptimizerSpec withParameters(OptimizerSpec spec, const std::vector<std::vector<std::string>>& parameters) {
  const auto require = [](bool holds, const char* name, double value, const char* expected) {
    ABELE_REQUIRE(
        holds, E0706,
        {.what = cat(name, " is ", value), .expected = expected, .remedy = cat("leave ", name, " at its default")});
  };
  require(spec.loss_scaling > 0 && spec.loss_scaling < std::numeric_limits<double>::infinity(), "loss_scaling",
          spec.loss_scaling, "a positive, finite number");
  require(spec.rules.max_grad_norm > 0, "max_grad_norm", spec.rules.max_grad_norm, "a positive number, or infinity");
  spec.groups.resize(parameters.size());
  spec.rules.groups.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i)
    for (const std::string& name : parameters[i]) spec.rules.group_of[name] = static_cast<int>(i);
  return spec;
}

Fields fieldsOf(const OptimizerSpec& spec, size_t group) {
  const OptimizerGroup& rules = spec.rules.groups.at(group);
  Fields fields = spec.groups.at(group);
  fields["centered"] = rules.centered;
  fields["use_tf_variant"] = rules.tf_variant;
  fields["bias_correction"] = rules.bias_correction;
  return fields;
}

void setTypes(OptimizerSpec& spec, DType type) {
  spec.rules.accumulator = spec.rules.first_moment = spec.rules.second_moment = type;
}

bool haveSameNumbers(const OptimizerSpec& a, const OptimizerSpec& b) {
  const auto numbersAreEqual = [](const Fields& one, const Fields& other) {
    return std::ranges::equal(
        one, other, [](const auto& x, const auto& y) { return x.first == y.first && isSame(x.second, y.second); });
  };
  return a.rules.kind == b.rules.kind && isSame(a.loss_scaling, b.loss_scaling) &&
         std::ranges::equal(a.groups, b.groups, numbersAreEqual);
}

std::string firstDifference(const OptimizerSpec& sent, const OptimizerSpec& now) {
  if (haveSameNumbers(sent, now)) return {};
  if (!isSame(sent.loss_scaling, now.loss_scaling)) return "loss_scaling";
  if (sent.rules.kind != now.rules.kind || sent.groups.size() != now.groups.size())
    return "the number of parameter groups";
  for (size_t group = 0; group + 1 < now.groups.size(); ++group) {
    const Fields &before = sent.groups[group], &after = now.groups[group];
    std::vector<std::string> names = optimizerRow(now.rules.kind).numbers;
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
