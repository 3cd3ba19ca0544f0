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

TEST(OptionsFile, CalculatesAndReadsOptions) {
  const TemporaryFile file(R"(
deviceIterations(2 ** 3 + (7 // 2 - 1) * -1 % 4)  # 8 + 2
replicationFactor(1 << 2 | 1); options.Training.gradientAccumulation(options.replication_factor * 2)
Training.gradient_accumulation = poptorch.Options().device_iterations + options.Training.gradient_accumulation
broadcastBuffers(not True)
modelName("a" + 'b' "\x63\u00e4")
randomSeed(-9223372036854775808)
)");
  Options options;
  options.loadFromFile(file.path.string());
  EXPECT_EQ(options.deviceIterations(), 10);
  EXPECT_EQ(options.replicationFactor(), 5);
  EXPECT_EQ(options.gradientAccumulation(), 11);
  EXPECT_EQ(options.broadcast_buffers(), false);
  EXPECT_EQ(options.model_name(), "abc\xc3\xa4");
  EXPECT_EQ(options.random_seed(), uint64_t{1} << 63);
}

TEST(OptionsFile, HasExpressionsOfPython) {
  const TemporaryFile file(R"(
deviceIterations(0x1F + 0b1 if options.replication_factor == 1 else 1_000)
setExecutionStrategy(poptorch.PipelinedExecution(*[poptorch.Stage(f"block{i:02d}").ipu(i % 2) for i in range(4)]))
setAvailableMemoryProportion({f"IPU{i}": 0.1 * (i + 1) for i in range(2) if i < 3 and i not in (2,)})
appendToLocationExcludes(*sorted(set(["b", "a", "b"])), "c%d" % len("four"))
Training.gradientAccumulation(**dict(gradient_accumulation=max(3, *range(2))))
replication_factor += 1; options.replication_factor *= 2
_Popart.options["outlineThreshold"] = sum(x / 2 for x in [1, 2])
modelName(", ".join(reversed("{}-{n:>3}".format(1, n=2).split("-"))).upper() or 'x')
broadcastBuffers(False) if options._Popart.options["outlineThreshold"] > 1 else None
logDir("never") if False else None
)");
  Options options;
  options.loadFromFile(file.path.string());
  Options expected;
  expected.deviceIterations(32).replicationFactor(4).modelName("  2, 1").broadcastBuffers(false);
  expected.setExecutionStrategy(
      abele::PipelinedExecution{abele::Stage{"block00"}.ipu(0), abele::Stage{"block01"}.ipu(1),
                                abele::Stage{"block02"}.ipu(0), abele::Stage{"block03"}.ipu(1)});
  expected.setAvailableMemoryProportion({{"IPU0", 0.1}, {"IPU1", 0.2}}).appendToLocationExcludes({"a", "b", "c4"});
  expected.Training().gradientAccumulation(3);
  expected.Popart().set("outlineThreshold", 1.5);
  EXPECT_EQ(options.toJson(), expected.toJson());
}

// Each value is Python's repr() of the expression.
TEST(OptionsFile, ExpressionsHavePythonsResults) {
  const std::pair<const char*, const char*> cases[] = {
      {"-7 // 2, -7 % 3, 7.5 // -2, -2 ** 2, 2 ** -1", "(-4, 2, -4.0, -4, 0.5)"},
      {"1e5, 1e16, 1.5e-7, 0.1 + 0.2, -0.0", "(100000.0, 1e+16, 1.5e-07, 0.30000000000000004, -0.0)"},
      {"18446744073709551615 - 1, 9007199254740993 + 1", "(18446744073709551614, 9007199254740994)"},
      {"'abcdef'[4:1:-1], 'h\u00e4'[1], [1, 2, 3][-5::-1]", "('edc', '\u00e4', [])"},
      {"f'{255:#x} {1234567:,} {-5:05d} {0.25:.1%} {\"a\"!r:>5}'", "\"0xff 1,234,567 -0005 25.0%   'a'\""},
      {"1 < 2 < 3, 1 == 1.0, (1,) == [1], not 1 == 2", "(True, True, False, True)"},
      {"round(2.5), round(2.675, 2), int('-0x1f', 16), int(-3.9)", "(2, 2.67, -31, -3)"},
      {"{1: 'a', True: 'b', 'c': (1,)}", "{1: 'b', 'c': (1,)}"},
      {"0 or 'x', 1 and [], None is None, '%5.1f%%' % 2.25", "('x', [], True, '  2.2%')"}};
  for (const auto& [expression, expected] : cases) {
    const TemporaryFile file(std::string("modelName(repr((") + expression + ")))");
    Options options;
    options.loadFromFile(file.path.string());
    EXPECT_EQ(options.model_name(), expected);
  }
}

TEST(OptionsFile, RefusesWhatIsMoreThanOptions) {
  const std::pair<const char*, const char*> lines[] = {
      {"deviceIterations(1 / 0)", "E0702 option-value: division by zero"},
      {"deviceIterations(2 ** 4096)", "too large"},
      {"deviceIterations(9223372036854775807 + 1)", "device_iterations is 9223372036854775808"},
      {"deviceIterations(unknown)", "name unknown is not defined"},
      {"logDir(poptorch.os.getcwd())", "E0701"},
      {"logDir('{0}'.format(options))", "the text of options"},
      {"logDir('{0.frozen}'.format(1))", "E0701"},
      {"logDir((lambda: 'x')())", "makes no functions"},
      {"logDir(open('x'))", "name open is not defined"},
      {"logDir('a' * 10 ** 9)", "too large"},
      {"logDir(str([0 for i in range(10 ** 4) for k in range(10 ** 4)]))", "more than 100000 values"},
      {"logDir('a'.title())", "no method title"},
      {"source_location_excludes[0] = 'x'", "cannot be set"},
      {"options.source_location_excludes.append('x')", "E0701"},
      {"deviceIterations(range(3))", "a range"},
      {"deviceIterations([3][1])", "index 1 of a list of 1"},
      {"deviceIterations({'a': 1}['b'])", "a map without the name 'b'"},
      {"logDir(f'{ {1, 2} }')", "which has no order"},
      {"appendToLocationExcludes(*{'a', 'b'})", "the order of a set"},
      {"logDir(options)", "is no value of an option"},
      {"logDir(options.__class__)", "SyntaxError at line 1"},
      {"deviceIterations(2", "'(' was never closed"},
      {"deviceIterations(2)(3)", "E0701"},
      {"deviceIterations(\"a\" - 3)", "arithmetic (-) with"}};
  for (const auto& [line, expected] : lines) {
    const TemporaryFile file(line);
    const std::string text = abele::test::errorOf([&] { Options().loadFromFile(file.path.string()); });
    EXPECT_NE(text.find(expected), std::string::npos) << line << "\n" << text;
  }
}

TEST(OptionsFile, AppliesNothingWhenALineDoesNotParse) {
  const TemporaryFile file("deviceIterations(4)\n\n# comment\nTraining.gradientAccumulation(\nreplicationFactor(2)\n");
  Options options;
  try {
    options.loadFromFile(file.path.string());
    FAIL() << "nothing thrown";
  } catch (const abele::UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("E0702"), std::string::npos) << text;
    EXPECT_NE(text.find("SyntaxError at line 2 of abele_options.cfg"), std::string::npos) << text;
    EXPECT_NE(text.find("> options.Training.gradientAccumulation("), std::string::npos) << text;
    EXPECT_NE(text.find("  try  "), std::string::npos) << text;
  }
  EXPECT_EQ(options.str(), Options().str());
}

TEST(OptionsFile, NamesThatDoNotExistAreRefused) {
  for (const char* line :
       {"noSuchSetter(1)", "Training.deviceIterations(1)", "deviceIterations", "Training", "no_such_key = 1",
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
