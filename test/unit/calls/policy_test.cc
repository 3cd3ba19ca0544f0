// Rules that differ between the packages: values on their way in and out, and devices that can be reserved.
#include "calls/policy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "../../support/code_of.h"
#include "calls/arguments.h"
#include "calls/devices.h"
#include "compile/from_options.h"
#include "options/notes.h"
#include "registry/devices.h"

namespace abele::calls {
namespace {

using test::codeOf;
using test::errorOf;

Policy narrow() { return {.many_programs = false, .wide_numbers = false, .repeats_constants = false}; }
Policy reserving() { return {.most_devices = 64}; }

std::vector<at::Tensor> asInputs(const std::vector<at::Tensor>& given, const Policy& policy, bool has_float64 = false,
                                 std::vector<std::string>* warnings = nullptr) {
  return deviceInputs(given, {.policy = policy,
                              .has_float64 = [=] { return has_float64; },
                              .warn =
                                  [=](const std::string& text) {
                                    if (warnings) warnings->push_back(text);
                                  }});
}

TEST(Arguments, AbelesOwnRulesLeaveValuesAlone) {
  const at::Tensor wide = torch::ones({2, 2}, torch::kDouble);
  std::vector<std::string> warnings;
  EXPECT_EQ(asInputs({wide.t()}, {}, false, &warnings)[0].scalar_type(), at::kDouble);
  EXPECT_TRUE(asInputs({wide}, {}, false, &warnings)[0].is_same(wide));
  EXPECT_EQ(warnings.size(), 0u);
  EXPECT_TRUE(narrowed(wide, "x", {}).is_same(wide));
  EXPECT_TRUE(narrowedResults({wide}, {{0, {1, 2}}}, {})[0].is_same(wide));
}

TEST(Arguments, NarrowPackagesTakeFloat64AsFloat32) {
  const at::Tensor wide = torch::ones({2, 2}, torch::kDouble);
  std::vector<std::string> warnings;
  EXPECT_EQ(asInputs({wide}, narrow(), false, &warnings)[0].scalar_type(), at::kFloat);
  EXPECT_EQ(warnings, std::vector<std::string>{"float64 inputs are converted to float32"});
  EXPECT_TRUE(asInputs({wide}, narrow(), /*has_float64=*/true)[0].is_same(wide));
  EXPECT_EQ(inTypes({torch::ones(2, torch::kInt)}, {contiguousType(DType::kInt64, {2})}, narrow())[0].scalar_type(),
            at::kLong);
}

TEST(Arguments, InputsThatNoDeviceTakes) {
  const at::Tensor dense = torch::ones({2, 2});
  EXPECT_NE(errorOf([&] { asInputs({dense.to_sparse()}, {}); }).find("an input of layout torch.sparse_coo"),
            std::string::npos);
  EXPECT_NE(errorOf([&] { asInputs({torch::ones({3, 0})}, {}); }).find("Got shape [3, 0]"), std::string::npos);
  const Policy floats{.input_types = {DType::kFloat32, DType::kBFloat16}};
  EXPECT_EQ(codeOf([&] { asInputs({dense}, floats); }), "");
  const std::string text = errorOf([&] { asInputs({dense.to(torch::kComplexFloat)}, floats); });
  EXPECT_NE(text.find("E0708"), std::string::npos) << text;
  EXPECT_NE(text.find("an input of type torch.complex64"), std::string::npos) << text;
  EXPECT_NE(text.find("bfloat16, float32"), std::string::npos) << text;
}

TEST(Arguments, IntegersAreNarrowedWhereTheyFit) {
  const at::Tensor fits = torch::tensor({int64_t{2147483647}, int64_t{-2147483648}}, torch::kLong);
  EXPECT_TRUE(at::equal(narrowed(fits, "x", narrow()), fits.to(torch::kInt)));
  const std::string text = errorOf([&] { narrowed(fits + 1, "result 3", narrow()); });
  EXPECT_NE(text.find("E0609"), std::string::npos) << text;
  EXPECT_NE(text.find("result 3"), std::string::npos) << text;
  EXPECT_NE(text.find("2147483648"), std::string::npos) << text;
}

TEST(Arguments, WhatAStepWroteIsInTheCallersTensors) {
  const at::Tensor given = torch::zeros(2, torch::kInt), other = torch::zeros(2);
  const at::Tensor converted = torch::full(2, 7, torch::kLong);
  writeBack({given, other}, {converted, torch::ones(2)}, {0}, narrow());
  EXPECT_TRUE(at::equal(given, torch::full(2, 7, torch::kInt)));
  EXPECT_TRUE(at::equal(other, torch::zeros(2)));
  EXPECT_EQ(codeOf([&] { writeBack({given}, {converted + (int64_t{1} << 40)}, {0}, narrow()); }), "E0609");
}

TEST(Arguments, ConstantsAreThoseOfOneMicroBatch) {
  const at::Tensor rows = torch::arange(6.0).view({3, 2});
  EXPECT_TRUE(at::equal(narrowedResults({rows}, {{0, {1, 2}}}, narrow())[0], rows.slice(0, 0, 1)));
  EXPECT_TRUE(at::equal(narrowedResults({rows.select(1, 0)}, {{0, {}}}, narrow())[0], torch::zeros({})));
}

std::string refused(const Options::Values& values, const std::vector<int>& stages, const Policy& policy = reserving()) {
  return errorOf([&] { requireDevices(policy, values, stages); });
}

TEST(Devices, AreReservedInPowersOfTwo) {
  Options::Values values(false);
  EXPECT_EQ(refused(values, {0, 1}), "");
  EXPECT_EQ(refused(values, {0, 1, 2}, {}), "");
  EXPECT_NE(refused(values, {0, 1, 2}).find("the model uses 3 devices"), std::string::npos);
  EXPECT_NE(refused(values, {0, 64}).find("at most 64"), std::string::npos);
  values.call("replicationFactor", {options::OptionValue(int64_t{3})});
  EXPECT_NE(refused(values, {0, 1}).find("6 devices (3 replicas)"), std::string::npos);
  values.call("autoRoundNumIPUs", {options::OptionValue(true)});
  std::vector<std::string> notes;
  const options::NoteListener listener([&](log::Level, const std::string& text) { notes.push_back(text); });
  EXPECT_EQ(refused(values, {0, 1}), "");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("8 are reserved"), std::string::npos);
}

TEST(Devices, AreAsManyAsTheVariableSays) {
  setenv("ABELE_EMULATED_DEVICES", "5", 1);
  const std::vector<registry::DeviceGroup> groups = registry::deviceGroups();
  ASSERT_EQ(groups.size(), 8u);  // five, two pairs, one of four
  EXPECT_EQ(groups[6].first, 2);
  EXPECT_EQ(groups[6].count, 2);
  Options::Values values(false);
  EXPECT_NE(refused(values, {0, 7}).find("at most 5 (ABELE_EMULATED_DEVICES)"), std::string::npos);
  values.call("useIpuId", {options::OptionValue(int64_t{8})});
  EXPECT_EQ(codeOf([&] { requireTarget(values); }), "E0402");
  values.call("useIpuId", {options::OptionValue(int64_t{1})});
  EXPECT_EQ(codeOf([&] { requireTarget(values); }), "");
  EXPECT_NE(refused(values, {0, 1}).find("the device group 1 is too small"), std::string::npos);
  unsetenv("ABELE_EMULATED_DEVICES");
}

TEST(Devices, AnAutoSplitIsForTheCoresOfAReplica) {
  Options::Values values(false);
  EXPECT_EQ(devicesToSplitFor(6, values), 4);
  EXPECT_EQ(devicesToSplitFor(1, values), 1);
  values.call("replicationFactor", {options::OptionValue(int64_t{2})});
  EXPECT_EQ(devicesToSplitFor(6, values), 2);
  EXPECT_EQ(devicesToSplitFor(1, values), 1);
}

TEST(Policy, OptionsWinOverWhatAPackageAsksFor) {
  Options::Values values(false);
  EXPECT_FALSE(compile::programOptions(values, false).enforce_pipeline_minimum);
  EXPECT_TRUE(compile::programOptions(values, false).share_weights);
  for (const bool value : {false, true}) {
    const Policy policy{.shares_weights = value, .short_pipelines = value};
    EXPECT_EQ(programOptions(values, false, policy).share_weights, value);
    EXPECT_EQ(programOptions(values, false, policy).enforce_pipeline_minimum, !value);
    Options::Values chosen = values;
    chosen.call("enforcePipelineMinimum", {options::OptionValue(value)});
    chosen.call("shareWeights", {options::OptionValue(!value)});
    EXPECT_EQ(programOptions(chosen, false, policy).share_weights, !value);
    EXPECT_EQ(programOptions(chosen, false, policy).enforce_pipeline_minimum, value);
  }
}

}  // namespace
}  // namespace abele::calls
