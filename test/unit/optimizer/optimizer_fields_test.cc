// The one reader of optimizers: fields become rules and numbers, and back.
#include <gtest/gtest.h>

#include <limits>

#include "../../support/code_of.h"
#include "base/error.h"
#include "base/optimizers.h"
#include "optimizer/optimizer_fields.h"

namespace abele::test {
namespace {

using namespace optimizer;

OptimizerSpec sgd(const Fields& group, const optimizer::Reading& reading = {}) {
  OptimizerSpec spec;
  spec.rules.kind = OptimizerKind::kSgd;
  addGroup(spec, group, reading);
  return spec;
}

TEST(OptimizerFields, DampeningWithoutMomentumCountsWhereTorchsRulesDoNotHold) {
  const Fields group = {{"lr", 0.1}, {"momentum", 0}, {"dampening", 0.5}};
  const OptimizerSpec torchs = sgd(group), others = sgd(group, {.follows_torch = false});
  EXPECT_FALSE(torchs.rules.groups[0].momentum);
  EXPECT_EQ(torchs.groups[0].at("dampening"), 0);
  EXPECT_TRUE(others.rules.groups[0].momentum);
  EXPECT_FALSE(others.rules.groups[0].torch_dampening);
  EXPECT_EQ(others.groups[0].at("dampening"), 0.5);
}

TEST(OptimizerFields, MomentumThatMayChangeKeepsAVelocity) {
  const Fields group = {{"lr", 0.1}, {"momentum", 0}, {"dampening", 0}};
  EXPECT_FALSE(sgd(group).rules.groups[0].momentum);
  const OptimizerSpec varies = sgd(group, {.momentum_varies = true});
  EXPECT_TRUE(varies.rules.groups[0].momentum);
  EXPECT_TRUE(varies.rules.groups[0].torch_dampening);
}

TEST(OptimizerFields, NumbersThatTheDeviceDoesNotGetAreNoDifference) {
  const OptimizerSpec one = sgd({{"lr", 0.1}, {"momentum", 0}, {"dampening", 0.5}, {"beta1", 1}});
  const OptimizerSpec same = sgd({{"lr", 0.1}, {"momentum", 0}, {"dampening", 0.25}, {"beta1", 2}});
  const OptimizerSpec other = sgd({{"lr", 0.2}, {"momentum", 0}, {"dampening", 0.5}, {"beta1", 1}});
  EXPECT_TRUE(haveSameNumbers(one, same));
  EXPECT_FALSE(haveSameNumbers(one, other));
}

TEST(OptimizerFields, EveryGroupHasFieldsThatMakeIt) {
  for (const OptimizerRow& row : allOptimizers())
    for (const double momentum : {0.0, 0.75}) {
      OptimizerSpec spec, again;
      spec.rules.kind = again.rules.kind = row.kind;
      for (size_t i = 0; i < 2; ++i) {
        Fields group;
        for (const std::string& name : row.numbers) group[name] = 0.25 + static_cast<double>(i);
        if (group.contains("momentum")) group["momentum"] = momentum;
        group["maximize"] = 1;
        group["centered"] = group["use_tf_variant"] = row.kind == OptimizerKind::kRmsprop;
        group["bias_correction"] = 0;
        addGroup(spec, group, {.momentum_varies = true});
        addGroup(again, fieldsOf(spec, i), {.momentum_varies = momentumVaries(spec)});
        const OptimizerGroup &found = again.rules.groups[i], &expected = spec.rules.groups[i];
        EXPECT_EQ(found.momentum, expected.momentum) << row.name;
        EXPECT_EQ(found.centered, expected.centered) << row.name;
        EXPECT_EQ(found.tf_variant, expected.tf_variant) << row.name;
        EXPECT_EQ(found.bias_correction, expected.bias_correction) << row.name;
      }
      EXPECT_EQ(again.groups, spec.groups) << row.name;
    }
}

TEST(OptimizerFields, RefusesNumbersThatNoOptimizerHas) {
  const auto codeWith = [](double loss_scaling, double max_grad_norm) {
    OptimizerSpec spec = sgd({{"lr", 0.1}, {"momentum", 0}});
    spec.loss_scaling = loss_scaling;
    spec.rules.max_grad_norm = max_grad_norm;
    return codeOf([&] { withParameters(spec, {{"w"}}); });
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(codeWith(1, 1), "");
  EXPECT_EQ(codeWith(1, kInfinity), "");
  for (const double norm : {0.0, -kInfinity}) EXPECT_EQ(codeWith(1, norm), "E0706") << norm;
  for (const double scale : {0.0, -1.0, kInfinity, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(codeWith(scale, 1), "E0706") << scale;
}

}  // namespace
}  // namespace abele::test
