// The one reader of optimizers: fields become rules and numbers, and back.
#include <gtest/gtest.h>

#include <limits>

#include "../../support/code_of.h"
#include "base/error.h"
#include "base/optimizers.h"
#include "optimizer/optimizer_fields.h"

namespace abele::test {
namespace {

using optimizer::OptimizerFields;

OptimizerFields sgd(optimizer::Fields group) { return {.kind = OptimizerKind::kSgd, .groups = {std::move(group)}}; }

OptimizerGroup rulesOf(const OptimizerFields& fields) { return specOf(fields, {{"w"}}).rules.groups.at(0); }

TEST(OptimizerFields, DampeningWithoutMomentumCountsWhereTorchsRulesDoNotHold) {
  OptimizerFields fields = sgd({{"lr", 0.1}, {"momentum", 0}, {"dampening", 0.5}});
  EXPECT_FALSE(rulesOf(fields).momentum);
  EXPECT_EQ(numbersOf(fields, fields.groups[0]).at("dampening"), 0);
  fields.follows_torch = false;
  EXPECT_TRUE(rulesOf(fields).momentum);
  EXPECT_FALSE(rulesOf(fields).torch_dampening);
  EXPECT_EQ(numbersOf(fields, fields.groups[0]).at("dampening"), 0.5);
}

TEST(OptimizerFields, MomentumThatMayChangeKeepsAVelocity) {
  OptimizerFields fields = sgd({{"lr", 0.1}, {"momentum", 0}, {"dampening", 0}});
  EXPECT_FALSE(rulesOf(fields).momentum);
  fields.momentum_varies = true;
  EXPECT_TRUE(rulesOf(fields).momentum);
  EXPECT_TRUE(rulesOf(fields).torch_dampening);
}

TEST(OptimizerFields, NumbersThatTheDeviceDoesNotGetAreNoDifference) {
  const OptimizerFields one = sgd({{"lr", 0.1}, {"momentum", 0}, {"dampening", 0.5}, {"beta1", 1}});
  const OptimizerFields same = sgd({{"lr", 0.1}, {"momentum", 0}, {"dampening", 0.25}, {"beta1", 2}});
  const OptimizerFields other = sgd({{"lr", 0.2}, {"momentum", 0}, {"dampening", 0.5}, {"beta1", 1}});
  EXPECT_TRUE(haveSameNumbers(one, same));
  EXPECT_FALSE(haveSameNumbers(one, other));
}

TEST(OptimizerFields, EverySpecHasFieldsThatMakeIt) {
  for (const OptimizerRow& row : allOptimizers())
    for (const double momentum : {0.0, 0.75}) {
      OptimizerFields fields{.kind = row.kind,
                             .loss_scaling = 8,
                             .max_grad_norm = 2,
                             .types = {{"accum_type", DType::kFloat16}},
                             .momentum_varies = true};
      for (size_t i = 0; i < 2; ++i) {
        optimizer::Fields& group = fields.groups.emplace_back();
        for (const std::string& name : row.numbers) group[name] = 0.25 + static_cast<double>(i);
        if (group.contains("momentum")) group["momentum"] = momentum;
        group["maximize"] = 1;
        group["centered"] = group["use_tf_variant"] = row.kind == OptimizerKind::kRmsprop;
        group["bias_correction"] = 0;
      }
      const compile::OptimizerSpec spec = specOf(fields, {{"a", "b"}, {"c"}});
      const compile::OptimizerSpec again = optimizer::specOf(optimizer::fieldsOf(spec), {{"a", "b"}, {"c"}});
      EXPECT_EQ(again.groups, spec.groups) << row.name;
      EXPECT_EQ(again.rules.group_of, spec.rules.group_of) << row.name;
      EXPECT_EQ(again.rules.accumulator, DType::kFloat16) << row.name;
      EXPECT_EQ(again.rules.max_grad_norm, 2) << row.name;
      EXPECT_EQ(again.loss_scaling, 8) << row.name;
      for (size_t i = 0; i < 2; ++i) {
        const OptimizerGroup &found = again.rules.groups[i], &expected = spec.rules.groups[i];
        EXPECT_EQ(found.momentum, expected.momentum) << row.name;
        EXPECT_EQ(found.centered, expected.centered) << row.name;
        EXPECT_EQ(found.tf_variant, expected.tf_variant) << row.name;
        EXPECT_EQ(found.bias_correction, expected.bias_correction) << row.name;
      }
    }
}

TEST(OptimizerFields, RefusesNumbersThatNoOptimizerHas) {
  const auto codeWith = [](auto change) {
    OptimizerFields fields = sgd({{"lr", 0.1}, {"momentum", 0}});
    change(fields);
    return codeOf([&] { specOf(fields, {{"w"}}); });
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(codeWith([](OptimizerFields&) {}), "");
  EXPECT_EQ(codeWith([](OptimizerFields& fields) { fields.max_grad_norm = kInfinity; }), "");
  EXPECT_EQ(codeWith([](OptimizerFields& fields) { fields.max_grad_norm = 0; }), "E0706");
  EXPECT_EQ(codeWith([](OptimizerFields& fields) { fields.max_grad_norm = -kInfinity; }), "E0706");
  for (const double scale : {0.0, -1.0, kInfinity, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(codeWith([&](OptimizerFields& fields) { fields.loss_scaling = scale; }), "E0706") << scale;
}

}  // namespace
}  // namespace abele::test
