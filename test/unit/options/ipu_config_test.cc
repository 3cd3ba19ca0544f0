// IpuConfig: settings, their dependencies, and the options and places of layers that they become.
#include "abele/ipu_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../../support/code_of.h"

namespace {

using abele::IpuConfig;
using abele::test::codeOf;
using Devices = std::vector<int64_t>;

TEST(IpuConfig, SettingsDecideOthers) {
  const std::string json = IpuConfig(R"({"layers_per_ipu": [1, 3], "matmul_proportion": [0.1, 0.3]})").toJson();
  for (const char* part : {"\"inference_layers_per_ipu\": [\n    1,\n    3\n  ]", "\"ipus_per_replica\": 2",
                           "\"embedding_serialization_factor\": 1", "\"seed\": null"})
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
  EXPECT_EQ(IpuConfig(json).toJson(), json);
}

TEST(IpuConfig, WhatDoesNotFitIsRefused) {
  for (const char* json :
       {"", "[]", R"({"replication_factor": 0})", R"({"layers_per_ipu": [1.5]})", R"({"layer_per_ipu": [1]})",
        R"({"layers_per_ipu": [1, 2], "ipus_per_replica": 4})", R"({"matmul_proportion": [0.1, 0.2]})",
        R"({"output_mode": "some"})", R"({"serialized_embedding_splits_per_ipu": [0]})",
        R"({"embedding_serialization_factor": 2, "serialized_embedding_splits_per_ipu": [2]})",
        R"({"layers_per_ipu": [18446744073709551615]})"})
    EXPECT_EQ(codeOf([&] { IpuConfig config(json); }), "E0702") << json;
  const std::string deep = R"({"parallelize_kwargs": )" + std::string(200'000, '[');
  EXPECT_EQ(codeOf([&] { IpuConfig config(deep); }), "E0702");
  const IpuConfig encoder(R"({"execute_encoder_on_cpu_for_generation": true})");
  EXPECT_EQ(codeOf([&] { encoder.options(); }), "E0702");
  EXPECT_EQ(codeOf([] { IpuConfig::read("no such folder"); }), "E0712");
  const std::filesystem::path loop = std::filesystem::path(testing::TempDir()) / "abele_loop.json";
  std::filesystem::remove(loop);
  std::filesystem::create_symlink(loop, loop);
  EXPECT_EQ(codeOf([&] { IpuConfig::read(loop.string()); }), "E0712");
  std::filesystem::remove(loop);
}

TEST(IpuConfig, LayersAreSharedAmongTheDevices) {
  EXPECT_EQ(IpuConfig(R"({"layers_per_ipu": [2, -1, -1]})").layerDevices(7), (Devices{0, 0, 1, 1, 2, 2, 2}));
  EXPECT_EQ(IpuConfig(R"({"ipus_per_replica": 2})").layerDevices(3), (Devices{0, 1, 1}));
  const IpuConfig twins(R"({"layers_per_ipu": [1, 2], "inference_layers_per_ipu": [3]})");
  EXPECT_EQ(twins.layerDevices(3, /*for_inference=*/true), (Devices{0, 0, 0}));
  EXPECT_EQ(codeOf([&] { twins.layerDevices(4); }), "E0702");
  EXPECT_EQ(codeOf([&] { twins.layerDevices(-1, /*for_inference=*/true); }), "E0702");
  const IpuConfig large(R"({"layers_per_ipu": [-1, 9223372036854775807, 9223372036854775807]})");
  EXPECT_EQ(codeOf([&] { large.layerDevices(4); }), "E0702");
}

TEST(IpuConfig, DeprecatedSettingsWarnIfTheyAskForSomething) {
  testing::internal::CaptureStderr();
  IpuConfig(R"({"profile_dir": "", "use_popdist": false, "sharded_execution_for_inference": true})");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("sharded_execution_for_inference is deprecated"), std::string::npos) << log;
  EXPECT_EQ(log.find("profile_dir"), std::string::npos) << log;
  EXPECT_EQ(log.find("use_popdist"), std::string::npos) << log;
}

TEST(IpuConfig, AFileIsOptions) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "abele_ipu_config_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "ipu_config.json")
      << R"({"layers_per_ipu": [2, 2], "gradient_accumulation_steps": 8, "inference_device_iterations": 3,
             "replication_factor": 2, "transformers_version": "4.20", "profile_dir": "", "use_popdist": false})";
  const IpuConfig config = IpuConfig::read(folder.string());
  std::filesystem::remove_all(folder);
  const abele::Options training = config.options(), inference = config.options(/*for_inference=*/true);
  EXPECT_EQ(training.gradientAccumulation(), 8);
  EXPECT_EQ(training.toJson().find("ShardedExecution"), std::string::npos);
  EXPECT_EQ(inference.deviceIterations(), 3);
  EXPECT_EQ(inference.gradientAccumulation(), 1);
  EXPECT_NE(inference.toJson().find("ShardedExecution"), std::string::npos);
  EXPECT_EQ(training.Popart().get("outlineThreshold"), abele::Setting(10.0));  // as the original sets it
}

}  // namespace
