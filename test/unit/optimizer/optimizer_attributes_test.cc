// Optimizers by their attributes: constants of a program, parameters by memory, what no optimizer can have.
#include "optimizer/optimizer_attributes.h"

#include <gtest/gtest.h>

#include <set>

#include <ATen/ops/ones.h>

#include "../../support/code_of.h"
#include "base/error.h"

namespace abele::test {
namespace {

using modules::NamedTensor;

/// Attributes that are numbers. Their texts are those of std::to_string.
class Fake : public optimizer::OptimizerAttributes {
 public:
  OptimizerKind kind() const override { return kind_; }
  bool isOurs() const override { return is_ours; }
  bool isConstant(const std::string& name) const override { return constant.contains(name); }
  bool isMarkedConstant(const std::string& name) const override { return is_ours && marked.contains(name); }
  int numGroups() const override { return static_cast<int>(groups.size()); }
  std::vector<at::Tensor> parameters(int group) const override { return tensors.at(static_cast<size_t>(group)); }
  bool has(int place, const std::string& name) const override { return at(place).contains(name); }
  std::optional<double> number(int place, const std::string& name) const override {
    const auto it = at(place).find(name);
    return it == at(place).end() ? std::nullopt : std::optional(it->second);
  }
  std::optional<std::pair<double, double>> pair(int, const std::string&) const override { return std::nullopt; }
  std::optional<DType> type(int, const std::string&) const override { return std::nullopt; }
  bool isTrue(int place, const std::string& name) const override { return number(place, name).value_or(0) != 0; }
  std::string text(int place, const std::string& name) const override {
    return has(place, name) ? cat(*number(place, name)) : "None";
  }

  OptimizerKind kind_ = OptimizerKind::kSgd;
  bool is_ours = false;
  std::set<std::string> constant, marked;
  std::vector<optimizer::Fields> groups = {sgd()};
  optimizer::Fields defaults = sgd(), whole;
  std::vector<std::vector<at::Tensor>> tensors;

 private:
  static optimizer::Fields sgd() { return {{"lr", 0.1}, {"momentum", 0}, {"dampening", 0}, {"weight_decay", 0}}; }
  const optimizer::Fields& at(int place) const {
    if (place == kWhole) return whole;
    return place == kDefaults ? defaults : groups.at(static_cast<size_t>(place));
  }
};

std::string changed(const Fake& before, const Fake& now, bool scaling_varies = false, bool follows_torch = false) {
  const auto of = [&](const Fake& optimizer) { return constantsOf(optimizer, scaling_varies, follows_torch); };
  return codeOf([&] { of(before).requireSame(of(now)); });
}

TEST(OptimizerConstants, OfTorchsClassesAreValuesThatWereLeftAtTheirDefaults) {
  const Fake before;
  Fake now;
  now.groups[0]["lr"] = 0.5;
  EXPECT_EQ(changed(before, now), "");
  now.groups[0]["weight_decay"] = 0.5;
  EXPECT_EQ(changed(before, now), "E0706");
  Fake given;
  given.groups[0]["weight_decay"] = 0.25;  // given a value, it varies
  EXPECT_EQ(changed(given, now), "");
  EXPECT_EQ(changed(given, before), "E0706");
}

TEST(OptimizerConstants, OfTorchsClassesThereAreNoneWhereTorchsRulesHold) {
  const Fake before;
  Fake now;
  now.groups[0]["weight_decay"] = 0.5;
  EXPECT_EQ(changed(before, now, /*scaling_varies=*/false, /*follows_torch=*/true), "");
}

TEST(OptimizerConstants, OfOursAreThoseThatTheySay) {
  Fake before, now;
  before.is_ours = now.is_ours = true;
  before.constant = now.constant = {"momentum"};
  now.groups[0]["weight_decay"] = now.groups[0]["lr"] = 0.5;
  EXPECT_EQ(changed(before, now), "");
  now.groups[0]["momentum"] = 0.5;
  EXPECT_EQ(changed(before, now), "E0706");
  Fake marked = before;
  marked.marked = {"lr"};
  EXPECT_EQ(changed(marked, before), "E0706");
}

TEST(OptimizerConstants, LossScalingMayChangeWhereItIsAutomatic) {
  Fake before, now;
  now.whole["loss_scaling"] = 2;
  EXPECT_EQ(changed(before, now), "E0706");
  EXPECT_EQ(changed(before, now, /*scaling_varies=*/true), "");
}

TEST(OptimizerConstants, GroupsAreCounted) {
  Fake before, now;
  now.groups.push_back(now.groups[0]);
  EXPECT_EQ(changed(before, now), "E0706");
  EXPECT_EQ(changed(now, before), "E0706");
}

TEST(OptimizerAttributes, MatchesParametersByMemory) {
  const at::Tensor both = at::ones({2, 3}), first = both.select(0, 0), second = both.select(0, 1);
  const std::vector<NamedTensor> model = {{"first", first, true, true},
                                          {"second", second, true, true},
                                          {"frozen", at::ones({2}), true, false},
                                          {"rest", at::ones({2}), true, true},
                                          {"buffer", at::ones({2}), false, false}};
  Fake optimizer;
  optimizer.tensors = {{both.select(0, 1), model[2].tensor, second}};
  EXPECT_EQ(namesOf(optimizer, model), (std::vector<std::vector<std::string>>{{"second", "frozen", "second"}}));
  EXPECT_EQ(trainedNamesOf(optimizer, model), (std::vector<std::vector<std::string>>{{"second"}, {"first", "rest"}}));
  EXPECT_EQ(specOf(optimizer, model, /*follows_torch=*/true).rules.group_of.size(), 1u);
  const auto with_defaults = specOf(optimizer, model, /*follows_torch=*/false).rules.group_of;
  EXPECT_EQ(with_defaults.at("rest"), 1);
  optimizer.tensors = {{model[4].tensor}};
  EXPECT_EQ(namesOf(optimizer, model)[0], std::vector<std::string>{""});
  EXPECT_EQ(codeOf([&] { trainedNamesOf(optimizer, model); }), "E0706");
}

TEST(OptimizerAttributes, RefusesWhatNoOptimizerHas) {
  const auto codeWith = [](const auto& change) {
    Fake optimizer;
    change(optimizer);
    return codeOf([&] { requireValues(optimizer, /*follows_torch=*/true); });
  };
  EXPECT_EQ(codeWith([](Fake&) {}), "");
  EXPECT_EQ(codeWith([](Fake& fake) { fake.groups[0].erase("lr"); }), "E0706");
  EXPECT_EQ(codeWith([](Fake& fake) { fake.groups[0]["amsgrad"] = 1; }), "E0706");
  EXPECT_EQ(codeWith([](Fake& fake) { fake.groups[0]["differentiable"] = 1; }), "E0706");
  EXPECT_EQ(codeWith([](Fake& fake) { fake.groups[0]["max_grad_norm"] = fake.whole["max_grad_norm"] = 1; }), "");
  EXPECT_EQ(codeWith([](Fake& fake) {
              fake.groups[0]["max_grad_norm"] = 1;
              fake.whole["max_grad_norm"] = 2;
            }),
            "E0706");
}

}  // namespace
}  // namespace abele::test
