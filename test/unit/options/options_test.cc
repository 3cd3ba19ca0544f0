// abele::Options: each row of the table through setter, JSON and refusals; files, text, freezing.
#include "abele/options.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "../../support/code_of.h"
#include "option_samples.h"

namespace {

using abele::Options;
using abele::test::codeOf;

std::string jsonCall(const char* path, const char* arguments) {
  return std::string("{\"") + path + "\": " + arguments + "}";
}

TEST(OptionsTable, SetterAndJsonMakeTheSameValues) {
  for (const abele::test::Sample& sample : abele::test::kSamples) {
    SCOPED_TRACE(sample.path);
    Options by_setter, by_json;
    sample.call(by_setter);
    by_json.fromJson(jsonCall(sample.path, sample.json));
    EXPECT_EQ(by_setter.str(), by_json.str());
    EXPECT_EQ(by_setter.toJson(), by_json.toJson());
  }
}

TEST(OptionsTable, JsonOfOptionsMakesEqualOnes) {
  Options all;
  for (const abele::test::Sample& sample : abele::test::kSamples) {
    SCOPED_TRACE(sample.path);
    Options one;
    sample.call(one);
    sample.call(all);
    EXPECT_EQ(Options().fromJson(one.toJson()).str(), one.str()) << one.toJson();
  }
  EXPECT_EQ(Options().fromJson(all.toJson()).str(), all.str()) << all.toJson();
  EXPECT_EQ(Options().toJson(), "{}");
}

TEST(OptionsTable, WrongArgumentsAreRefused) {
  for (const abele::test::Sample& sample : abele::test::kSamples) {
    SCOPED_TRACE(sample.path);
    Options options;
    const std::string before = options.str();
    if (sample.bad_json) {
      EXPECT_EQ(codeOf([&] { options.fromJson(jsonCall(sample.path, sample.bad_json)); }), "E0702");
    }
    EXPECT_EQ(codeOf([&] { options.fromJson(jsonCall(sample.path, "[1, 2, 3, 4, 5, 6]")); }), "E0702");
    EXPECT_EQ(options.str(), before);
  }
}

TEST(OptionsTable, FrozenOptionsStayAsTheyAre) {
  const Options frozen;
  const std::string before = frozen.str();
  frozen.freeze();
  for (const abele::test::Sample& sample : abele::test::kSamples) {
    SCOPED_TRACE(sample.path);
    EXPECT_EQ(codeOf([&] { sample.call(const_cast<Options&>(frozen)); }), "E0707");
    Options copy = frozen;
    EXPECT_FALSE(copy.isFrozen());
    EXPECT_EQ(codeOf([&] { sample.call(copy); }), "");
  }
  EXPECT_EQ(frozen.str(), before);
}

TEST(OptionsTable, LocationSettingsAreCopiedByValue) {
  for (const abele::test::LocationSample& sample : abele::test::kLocationSamples) {
    SCOPED_TRACE(sample.text);
    abele::TensorLocationSettings settings;
    sample.call(settings);
    Options by_setter;
    by_setter.TensorLocations().setWeightLocation(settings);
    const std::string text = by_setter.str();
    settings.minElementsForOffChip(99);
    EXPECT_EQ(by_setter.str(), text);
    std::string json = std::string("{\"TensorLocations.setWeightLocation\": \"") + sample.text + "\"}";
    EXPECT_EQ(Options().fromJson(json).str(), text);
  }
  abele::TensorLocationSettings settings;
  EXPECT_EQ(settings.onChip(), std::nullopt);
  EXPECT_EQ(settings.useOnChipStorage(false).onChip(), false);
  EXPECT_EQ(settings.useOnChipStorage(std::nullopt).onChip(), std::nullopt);
}

TEST(Options, ValuesAreReadUnderTheirKeys) {
  Options options;
  EXPECT_EQ(options.device_iterations(), 1);
  EXPECT_EQ(options.output_mode(), abele::OutputMode::kDefault);
  EXPECT_TRUE(options.defaultOutputMode());
  EXPECT_EQ(options.random_seed(), std::nullopt);
  options.randomSeed(~uint64_t{0}).outputMode(abele::OutputMode::kEveryN, 3).modelName("m").useIpuModel(true);
  EXPECT_EQ(options.random_seed(), ~uint64_t{0});
  EXPECT_EQ(options.output_return_period(), 3);
  EXPECT_EQ(options.model_name(), "m");
  EXPECT_EQ(options.use_model(), true);
  EXPECT_EQ(options.connection_type(), abele::ConnectionType::kAlways);
  EXPECT_EQ(options.useOfflineIpuTarget(21).connection_type(), abele::ConnectionType::kNever);
  EXPECT_EQ(options.maxRepeatLogs(std::nullopt).max_repeat_logs(), std::numeric_limits<int64_t>::max());
  options.Training().gradientAccumulation(4).setAutomaticLossScaling(true);
  EXPECT_EQ(options.Training().gradient_accumulation(), 4);
  EXPECT_EQ(std::get<bool>(*options.Popart().get("automaticLossScalingSettings.enabled")), true);
  EXPECT_EQ(options.Popart().get("outlineThreshold"), std::nullopt);
}

TEST(Options, StrategiesSurviveTheirText) {
  using abele::Liveness;
  const std::vector<abele::ExecutionStrategy> strategies = {
      abele::PipelinedExecution(abele::AutoStage::kAutoIncrement),
      abele::PipelinedExecution{abele::Stage{"a", "b"}.ipu(1), "c"}.schedule(abele::Schedule::kZeroBubble2),
      abele::PipelinedExecution().recompute(),
      abele::PipelinedExecution().recompute("fit"),
      abele::PipelinedExecution().costs("{\"stages\": [1, 2]}"),
      abele::ShardedExecution{"a", "b"},
      abele::SerialPhasedExecution{{"a"}, {"b", "c"}}.setTensorsLiveness(Liveness::kOffChipAfterFwdNoOverlap),
      abele::ParallelPhasedExecution{{"a"}, {"b"}}.sendTensorsOffChipAfterFwd().useSeparateBackwardPhase()};
  for (const abele::ExecutionStrategy& strategy : strategies) {
    Options options;
    options.setExecutionStrategy(strategy);
    EXPECT_EQ(Options().fromJson(options.toJson()).str(), options.str()) << options.toJson();
    EXPECT_NE(options.str(), Options().str());
  }
}

TEST(Options, NoGroupingMeansGroupsOfOne) {
  Options options;
  options.replicationFactor(4).inputReplicaGrouping(2, abele::CommGroupType::kOrthogonal);
  EXPECT_EQ(options.input_cgt(), abele::CommGroupType::kOrthogonal);
  options.inputReplicaGrouping(2, abele::CommGroupType::kNoGrouping);
  EXPECT_EQ(options.input_group_size(), 1);
  EXPECT_EQ(options.input_cgt(), abele::CommGroupType::kConsecutive);
}

TEST(Options, RulesOfSingleSetters) {
  Options options;
  EXPECT_EQ(codeOf([&] { options.outputMode(abele::OutputMode::kEveryN); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.useOfflineIpuTarget(3); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.setAvailableMemoryProportion({{"IPU0", 1.5}}); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.TensorLocations().numIOTiles(33); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.TensorLocations().numIOTiles(194); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.Jit().traceModel(true); }), "E0702");
  EXPECT_EQ(
      codeOf([&] { options.Training().accumulationAndReplicationReductionType(abele::ReductionType::kNoReduction); }),
      "E0702");
  EXPECT_EQ(codeOf([&] { options.syncPattern(static_cast<abele::SyncPattern>(9)); }), "E0702");
  EXPECT_EQ(codeOf([&] { options.anchorTensor("a", "b", abele::OutputMode::kEveryN, 0); }), "E0702");
  EXPECT_EQ(options.str(), Options().str());
}

struct TemporaryFile {
  explicit TemporaryFile(const std::string& text) : path(std::filesystem::temp_directory_path() / "abele_options.cfg") {
    std::ofstream(path) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

TEST(OptionsFile, AppliesLinesInOrder) {
  const TemporaryFile file(R"(
# A comment
deviceIterations(4)  # and one behind a call
Training.gradientAccumulation(gradient_accumulation=8)
outputMode(poptorch.OutputMode.EveryN, 2)
device_iterations = 5
replicationFactor(2).inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a", "b").ipu(1), ["c"], "d").schedule('gpipe'))
TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
Precision.setPartialsType(torch.half)
_Popart.set("convolutionOptions", {"a": "b", 'c': 1,})
setAvailableMemoryProportion({"IPU0": 0.5, "IPU1": 1})
sourceLocationExcludes(("x", "y"))
appendToLocationExcludes("z", "w")
randomSeed(18446744073709551615)
)");
  Options options;
  options.loadFromFile(file.path.string());
  Options expected;
  expected.deviceIterations(5).replicationFactor(2);
  expected.outputMode(abele::OutputMode::kEveryN, 2).inputReplicaGrouping(2, abele::CommGroupType::kOrthogonal);
  expected.setExecutionStrategy(
      abele::PipelinedExecution{abele::Stage{"a", "b"}.ipu(1), {"c"}, {"d"}}.schedule(abele::Schedule::kGPipe));
  expected.Training().gradientAccumulation(8);
  expected.TensorLocations().setOptimizerLocation(abele::TensorLocationSettings().useOnChipStorage(false));
  expected.Precision().setPartialsType(abele::FloatType::kHalf);
  expected.Popart().set("convolutionOptions", std::map<std::string, std::string>{{"a", "b"}, {"c", "1"}});
  expected.setAvailableMemoryProportion({{"IPU0", 0.5}, {"IPU1", 1}});
  expected.sourceLocationExcludes({"x", "y"}).appendToLocationExcludes({"z", "w"}).randomSeed(~uint64_t{0});
  EXPECT_EQ(options.output_return_period(), 2);
  EXPECT_EQ(options.toJson().find("\"setExecutionStrategy\": \"PipelinedExecution("), 1u);
  options.Popart().set("convolutionOptions", std::map<std::string, std::string>{{"a", "b"}, {"c", "1"}});
  options.setAvailableMemoryProportion({{"IPU0", 0.5}, {"IPU1", 1}});
  EXPECT_EQ(options.toJson(), expected.toJson());
}

TEST(OptionsFile, ReadsLiteralsAsPythonWritesThem) {
  const TemporaryFile file(R"(
randomSeed(-9223372036854775808)
modelName('\x63\u00e4 "\'\\')
broadcastBuffers(broadcast_buffers=False,)
Training.gradient_accumulation = (3)
setAvailableMemoryProportion({"IPU0": 2.5e-1, 'IPU1': .5, "IPU2": +1})
_Popart.set("dotChecks", ["Fwd0", "Final",])
outputMode(enums.OutputMode.All, None)
setExecutionStrategy(poptorch.SerialPhasedExecution(["a"], poptorch.Phase("b")).setTensorsLiveness(Liveness.AlwaysLive))
)");
  Options options;
  options.loadFromFile(file.path.string());
  Options expected;
  expected.randomSeed(uint64_t{1} << 63).modelName("c\xc3\xa4 \"'\\").broadcastBuffers(false);
  expected.outputMode(abele::OutputMode::kAll).Training().gradientAccumulation(3);
  expected.setAvailableMemoryProportion({{"IPU0", 0.25}, {"IPU1", 0.5}, {"IPU2", 1}});
  expected.Popart().set("dotChecks", std::vector<std::string>{"Fwd0", "Final"});
  expected.setExecutionStrategy(abele::SerialPhasedExecution{{"a"}, {"b"}});
  EXPECT_EQ(options.random_seed(), uint64_t{1} << 63);
  options.randomSeed(uint64_t{1} << 63).setAvailableMemoryProportion({{"IPU0", 0.25}, {"IPU1", 0.5}, {"IPU2", 1}});
  EXPECT_EQ(options.str(), expected.str());
}

TEST(OptionsFile, SaysWhatItCannotRead) {
  const std::pair<const char*, const char*> lines[] = {
      {"deviceIterations(2", "'(' was never closed"},
      {"deviceIterations", "no call of a setter"},
      {"deviceIterations(2 * 3)", "no ',' at column 20"},
      {"deviceIterations(0x1F)", "no number"},
      {"deviceIterations(007)", "no number"},
      {"deviceIterations(options.replication_factor)", "replication_factor"},
      {"deviceIterations(unknown)", "the name unknown"},
      {"deviceIterations(2)(3)", "more than a literal"},
      {"deviceIterations(2); logDir('x')", "more than a literal"},
      {"deviceIterations(1 if True else 2)", "no ','"},
      {"logDir(f'{1}')", "the name f"},
      {"logDir('a)", "a string that does not end"},
      {"logDir('\\q')", "an escape that is none of"},
      {"logDir('\\x4')", "an escape without its digits"},
      {"setAvailableMemoryProportion({1: 0.5})", "a name in a map that is no text"},
      {"anchorTensor(short_name='a', 'b')", "a positional argument behind one by name"},
      {"_Popart.options['x'] = 1", "no call of a setter"},
      {"a.b.c(1)", "a name of too many parts"}};
  for (const auto& [line, expected] : lines) {
    const TemporaryFile file(std::string("replicationFactor(2)\n# comment\n\n") + line + "  # more\n");
    Options options;
    const std::string text = abele::test::errorOf([&] { options.loadFromFile(file.path.string()); });
    for (const std::string part : {"E0702", "line 2 of abele_options.cfg cannot be read", expected, line, "  try  "})
      EXPECT_NE(text.find(part), std::string::npos) << line << "\n" << text;
    EXPECT_EQ(options.str(), Options().str());  // nothing is applied
  }
  const TemporaryFile deep("logDir(" + std::string(100000, '[') + ")");
  EXPECT_NE(abele::test::errorOf([&] { Options().loadFromFile(deep.path.string()); }).find("nested too deeply"),
            std::string::npos);
}

TEST(OptionsFile, ErrorsNameTheLine) {
  for (const char* line : {"deviceIteration(1)", "deviceIterations(0)", "deviceIterations()", "device_iterations = 'x'",
                           "outputMode(OutputMode.Every)", "setExecutionStrategy(poptorch.Stage(3))"}) {
    const TemporaryFile file(std::string("replicationFactor(2)\n") + line);
    const std::string text = abele::test::errorOf([&] { Options().loadFromFile(file.path.string()); });
    EXPECT_NE(text.find(std::string("line 2 of abele_options.cfg: ") + line), std::string::npos) << text;
  }
}

TEST(OptionsFile, NamesThatDoNotExistAreRefused) {
  for (const char* line :
       {"noSuchSetter(1)", "Training.deviceIterations(1)", "no_such_key = 1", "Training.device_iterations = 1",
        "syncPattern(poptorch.SyncPattern.None_)", "setExecutionStrategy(poptorch.Unknown())"}) {
    const TemporaryFile file(line);
    Options options;
    EXPECT_EQ(codeOf([&] { options.loadFromFile(file.path.string()); }), "E0701") << line;
  }
  Options options;
  EXPECT_EQ(codeOf([&] { options.loadFromFile("/no/such/file"); }), "E0712");
}

TEST(OptionsJson, DamagedTextIsRefused) {
  for (const char* text :
       {"", "[]", "1", "{", "{\"deviceIterations\"}", "{\"deviceIterations\": }", "{'a': 1}",
        "{\"deviceIterations\": 1} x", "{\"deviceIterations\": True(}", "{\"deviceIterations\": \"\\q\"}",
        "{\"deviceIterations\": [1}", "{\"deviceIterations\": 1, \"deviceIterations\": 2}"}) {
    Options options;
    EXPECT_EQ(codeOf([&] { options.fromJson(text); }), "E0702") << text;
    EXPECT_EQ(options.str(), Options().str());
  }
  EXPECT_EQ(codeOf([] { Options().fromJson(std::string(100000, '[')); }), "E0702");
  EXPECT_EQ(codeOf([] { Options().fromJson("{\"logDir\": " + std::string(100000, '[') + "}"); }), "E0702");
  const std::string near = abele::test::errorOf([] { Options().fromJson("{\"deviceIteration\": 1}"); });
  EXPECT_NE(near.find("did you mean deviceIterations?"), std::string::npos) << near;
  const std::string grouped = abele::test::errorOf([] { Options().fromJson("{\"gradientAccumulation\": 1}"); });
  EXPECT_NE(grouped.find("did you mean Training.gradientAccumulation?"), std::string::npos) << grouped;
  EXPECT_EQ(codeOf([] { Options().fromJson("{\"noSuchSetter\": 1}"); }), "E0701");
}

TEST(OptionsJson, ErrorsNameThePlace) {
  const auto errorOf = [](const char* text) { return abele::test::errorOf([=] { Options().fromJson(text); }); };
  EXPECT_NE(errorOf("{\"deviceIterations\": 2,\n\"logDir\": 3}").find("line 2, logDir of the JSON"), std::string::npos);
  EXPECT_NE(errorOf("{\"deviceIterations\": 2,\n\n\"logDir\": }").find("line 3"), std::string::npos);
  EXPECT_NE(errorOf("{\n\"logDir\": 1,\n\"logDir\": 2}").find("\"logDir\" twice in one object"), std::string::npos);
}

TEST(OptionsJson, NamesOfFilesAreBytes) {
  Options options;
  options.logDir("caf\xe9/\xc3\xa4\xff").enableExecutableCaching("\x80\xbf\xc0");
  const Options read = Options().fromJson(options.toJson());
  EXPECT_EQ(read.log_dir(), "caf\xe9/\xc3\xa4\xff");
  EXPECT_EQ(read.str(), options.str());
  EXPECT_EQ(Options().fromJson("{\"logDir\": \"\xee\xbe\x80\"}").log_dir(), "\xee\xbe\x80");  // as it is
}

TEST(OptionsJson, PairsOfSurrogatesAreOneCharacter) {
  EXPECT_EQ(Options().fromJson("{\"modelName\": \"\\ud83d\\ude00\"}").model_name(), "\xf0\x9f\x98\x80");
}

TEST(OptionsEnvironment, PlacesThatCannotBeAreRefused) {
  const auto refused = [](const char* count, const char* index) {
    setenv("OMPI_COMM_WORLD_SIZE", count, 1);
    setenv("OMPI_COMM_WORLD_RANK", index, 1);
    const std::string text = abele::test::errorOf([] { Options(); });
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
    return text;
  };
  for (const auto& [count, index, name] : {std::array{"-1", "0", "OMPI_COMM_WORLD_SIZE is -1"},
                                           {"0", "0", "OMPI_COMM_WORLD_SIZE is 0"},
                                           {"9999999999", "0", "OMPI_COMM_WORLD_SIZE is 9999999999"},
                                           {"4", "4", "OMPI_COMM_WORLD_RANK is 4"},
                                           {"4", "-1", "OMPI_COMM_WORLD_RANK is -1"},
                                           {"", "1", "OMPI_COMM_WORLD_SIZE is not set"}}) {
    const std::string text = refused(count, index);
    EXPECT_TRUE(text.starts_with("E0702")) << text;
    EXPECT_NE(text.find(name), std::string::npos) << text;
  }
  EXPECT_EQ(refused("4", "3"), "");
  setenv("MY_SIZE", "2", 1);
  setenv("MY_RANK", "2", 1);
  EXPECT_EQ(codeOf([] { Options().Distributed().setEnvVarNames("MY_SIZE", "MY_RANK"); }), "E0702");
  unsetenv("MY_SIZE");
  unsetenv("MY_RANK");
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  setenv("POPDIST_NUM_TOTAL_REPLICAS", "-1", 1);
  EXPECT_EQ(codeOf([] { Options(); }), "E0702");
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("POPDIST_NUM_TOTAL_REPLICAS");
}

TEST(OptionsEnvironment, DefaultsComeFromVariables) {
  setenv("POPTORCH_DEFAULT_OPTIONS", "{\"deviceIterations\": 3, \"Training.gradientAccumulation\": 2}", 1);
  setenv("POPTORCH_CACHE_DIR", "/tmp/somewhere", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  const Options options;
  for (const char* name :
       {"POPTORCH_DEFAULT_OPTIONS", "POPTORCH_CACHE_DIR", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"})
    unsetenv(name);
  EXPECT_EQ(options.deviceIterations(), 3);
  EXPECT_EQ(options.gradientAccumulation(), 2);
  EXPECT_EQ(std::get<std::string>(*options.Popart().get("cachePath")), "/tmp/somewhere");
  EXPECT_EQ(options.Distributed().num_distributed_processes(), 4);
  EXPECT_EQ(options.Distributed().distributed_process_id(), 1);
}

}  // namespace
