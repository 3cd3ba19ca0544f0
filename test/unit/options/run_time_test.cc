// Options of a program that is compiled already: some still apply, others return to their compiled values.
#include "options/run_time.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace abele::options {
namespace {

using Names = std::vector<std::string>;

TEST(RunTime, WhatIsPartOfAProgramGetsItsValueBack) {
  const Options::Values compiled(false);
  Options::Values now = compiled;
  now.call("replicationFactor", {OptionValue(int64_t{2})});
  now.call("deviceIterations", {OptionValue(int64_t{7})});
  now.call("Training.gradientAccumulation", {OptionValue(int64_t{3})});
  now.call("deviceMemoryLimit", {OptionValue(int64_t{1000})});
  now.call("_Popart.set", {OptionValue("enableOutlining"), OptionValue(false)});
  now.strategy = ShardedExecution();
  EXPECT_EQ(keepCompiled(now, compiled), (Names{"device_iterations", "device_memory_limit", "replication_factor",
                                                "gradient_accumulation", "enableOutlining", "the execution strategy"}));
  EXPECT_EQ(toText(now), toText(compiled));
  EXPECT_EQ(keepCompiled(now, compiled), Names{});
}

TEST(RunTime, WhatWasRemovedComesBack) {
  Options::Values compiled(false);
  compiled.call("offChipMemoryLimit", {OptionValue(int64_t{1000})});
  compiled.call("_Popart.set", {OptionValue("enableOutlining"), OptionValue(false)});
  Options::Values now(false);
  EXPECT_EQ(keepCompiled(now, compiled), (Names{"off_chip_memory_limit", "enableOutlining"}));
  EXPECT_EQ(now.get<int64_t>("off_chip_memory_limit"), 1000);
  EXPECT_TRUE(now.expert("enableOutlining"));
}

TEST(RunTime, DevicesLogsFoldersSeedsAndResultsStillCount) {
  const Options::Values compiled(false);
  Options::Values now = compiled;
  now.call("useIpuId", {OptionValue(int64_t{1})});
  now.call("logDir", {OptionValue("logs")});
  now.call("enableExecutableCaching", {OptionValue("cache")});
  now.call("randomSeed", {OptionValue(int64_t{5})});
  now.call("outputMode", {member("OutputMode", "All")});
  now.call("logCycleCount", {OptionValue(true)});
  now.call("Distributed.configureProcessId", {OptionValue(int64_t{1}), OptionValue(int64_t{2})});
  const std::string chosen = toText(now);
  EXPECT_EQ(keepCompiled(now, compiled), Names{});
  EXPECT_EQ(toText(now), chosen);
}

TEST(RunTime, OnlyWhatSomebodyChoseIsNamed) {
  Options::Values compiled(false), chosen(false);
  compiled.call("deviceIterations", {OptionValue(int64_t{2})});
  compiled.strategy = ShardedExecution();
  chosen.call("replicationFactor", {OptionValue(int64_t{2})});
  chosen.call("_Popart.set", {OptionValue("enableOutlining"), OptionValue(false)});
  Options::Values now = chosen;
  EXPECT_EQ(chosenInVain(keepCompiled(now, compiled), chosen), (Names{"replication_factor", "enableOutlining"}));
  EXPECT_EQ(toText(now), toText(compiled));
  EXPECT_EQ(chosenInVain({"the execution strategy"}, compiled), Names{"the execution strategy"});
}

TEST(RunTime, SavedOptionsComeBackWithoutAPlaceOrATargetWithoutDevices) {
  Options::Values values(false);
  values.call("Distributed.configureProcessId", {OptionValue(int64_t{1}), OptionValue(int64_t{2})});
  values.call("useOfflineIpuTarget", {});
  values.call("randomSeed", {OptionValue(int64_t{7})});
  values.strategy = ShardedExecution();
  Options::Values expected(false);
  expected.call("randomSeed", {OptionValue(int64_t{7})});
  expected.strategy = ShardedExecution();
  EXPECT_EQ(toJson(savedOptions(textOfSaved(values))), toJson(expected));
  EXPECT_EQ(toText(savedOptions("")), toText(Options::Values(false)));
}

/// (index of this process, number of processes, devices of each) after a file's options took this process's place.
std::vector<int64_t> placeHere(int64_t here, int64_t processes, int64_t saved_process, int64_t saved_devices,
                               int64_t saved_processes) {
  Options::Values values(false);
  values.call("Distributed.configureProcessId", {OptionValue(here), OptionValue(processes)});
  values.call("Distributed.devicesPerProcess", {OptionValue(saved_devices)});
  takePlaceHere(values, saved_process, saved_processes);
  return {values.get<int64_t>("distributed_process_id"), values.get<int64_t>("num_distributed_processes"),
          values.get<int64_t>("devices_per_process")};
}

TEST(RunTime, SavedOptionsTakeThePlaceOfThisProcess) {
  using Place = std::vector<int64_t>;
  // Whole replicas in each process: the file's place applies if one of the numbers is 1.
  EXPECT_EQ(placeHere(0, 1, 1, 0, 2), (Place{1, 2, 0}));
  EXPECT_EQ(placeHere(1, 2, 0, 0, 1), (Place{0, 1, 0}));
  EXPECT_EQ(placeHere(1, 2, 0, 0, 4), (Place{1, 2, 0}));
  // Stages in several processes: the processes here share the same devices, if they can be divided.
  EXPECT_EQ(placeHere(0, 1, 1, 2, 2), (Place{0, 1, 0}));
  EXPECT_EQ(placeHere(1, 2, 3, 1, 4), (Place{1, 2, 2}));
  EXPECT_EQ(placeHere(0, 3, 0, 2, 2), (Place{0, 3, 2}));
}

TEST(RunTime, OtherProcessesHaveReplicasOfTheirOwnNumbers) {
  for (const int64_t here : {2, 4}) {
    Options::Values values(false);
    values.call("Distributed.configureProcessId", {OptionValue(int64_t{0}), OptionValue(here)});
    values.call("Distributed.devicesPerProcess", {OptionValue(int64_t{4})});
    values.call("Distributed.processesPerReplica", {OptionValue(int64_t{2})});
    values.call("Distributed.outputRank", {OptionValue("last")});
    Options::Values read = savedOptions(textOfSaved(values));
    read.call("Distributed.configureProcessId", {OptionValue(int64_t{0}), OptionValue(here)});
    takePlaceHere(read, 1, 2);
    EXPECT_EQ(read.get<int64_t>("processes_per_replica"), here == 2 ? 2 : 0);
    EXPECT_EQ(read.get<std::string>("output_rank"), "last");
  }
}

}  // namespace
}  // namespace abele::options
