// From the values of options to those of a program: one rule for C++ and for Python.
#include "compile/from_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../support/code_of.h"
#include "model/policy.h"
#include "options/notes.h"

namespace abele::host {
namespace {

using abele::test::codeOf;

ProgramOptions programOf(const Options::Values& values) { return programOptions(values, /*training=*/false); }

TEST(FromOptions, ProcessesThatShareACacheLockIt) {
  Options::Values values(false);
  values.call("enableExecutableCaching", {OptionValue("folder")});
  EXPECT_FALSE(programOf(values).cache_lock);
  values.call("Distributed.configureProcessId", {OptionValue(int64_t{0}), OptionValue(int64_t{2})});
  EXPECT_TRUE(programOf(values).cache_lock);
  EXPECT_EQ(programOf(values).cache_path, "folder");
  values.call("useIpuModel", {OptionValue(true)});
  EXPECT_EQ(programOf(values).cache_path, "");
}

TEST(FromOptions, OptionsWinOverWhatAPackageAsksFor) {
  Options::Values values(false);
  EXPECT_FALSE(programOf(values).enforce_pipeline_minimum);
  EXPECT_TRUE(programOf(values).share_weights);
  for (const bool value : {false, true}) {
    const Policy policy{.shares_weights = value, .short_pipelines = value};
    EXPECT_EQ(programOptions(values, false, policy).share_weights, value);
    EXPECT_EQ(programOptions(values, false, policy).enforce_pipeline_minimum, !value);
    Options::Values chosen = values;
    chosen.call("enforcePipelineMinimum", {OptionValue(value)});
    chosen.call("shareWeights", {OptionValue(!value)});
    EXPECT_EQ(programOptions(chosen, false, policy).share_weights, !value);
    EXPECT_EQ(programOptions(chosen, false, policy).enforce_pipeline_minimum, value);
  }
}

TEST(FromOptions, FieldsNameOptionsOfTheTable) {
  const auto expectKnown = [](const std::string& key) {
    EXPECT_TRUE(expertSettings().contains(key) ||
                std::ranges::find(optionKeys(), key, &OptionKey::key) != optionKeys().end())
        << key;
  };
#define ABELE_OPTION(...)
#define ABELE_COMPILED_OF(key, ...) expectKnown(key);
#define ABELE_AT_RUN_OF ABELE_COMPILED_OF
#include "compile/program_options.def"
}

TEST(FromOptions, DeprecatedSpellingsCallTheSetters) {
  std::vector<std::string> heard;
  const NoteListener listener([&](log::Level, const std::string& text) { heard.push_back(text); });
  Options::Values values(false);
  for (int i = 0; i < 2; ++i) {
    values.call("_Popart.set", {OptionValue("abele.allowShortPipeline"), OptionValue(true)});
    values.call("_Popart.set", {OptionValue("abele.separateMemory"), OptionValue(true)});
  }
  EXPECT_EQ(*values.find("enforce_pipeline_minimum"), OptionValue(false));
  EXPECT_EQ(*values.find("separate_memory"), OptionValue(true));
  EXPECT_TRUE(values.expert("abele.separateMemory") == nullptr);
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_NE(heard[0].find("use options.enforcePipelineMinimum()"), std::string::npos) << heard[0];
  EXPECT_EQ(codeOf([&] { values.call("_Popart.set", {OptionValue("abele.nothing"), OptionValue(true)}); }), "E0701");
}

TEST(FromOptions, LaunchersSayHowManyProcessesAreHere) {
  unsetenv("LOCAL_WORLD_SIZE");
  unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  EXPECT_EQ(localProcesses(4), 4);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  EXPECT_EQ(localProcesses(4), 2);
  setenv("LOCAL_WORLD_SIZE", "8", 1);
  EXPECT_EQ(localProcesses(4), 4);
  setenv("LOCAL_WORLD_SIZE", "-8", 1);
  EXPECT_EQ(codeOf([] { localProcesses(4); }), "E0702");
  unsetenv("LOCAL_WORLD_SIZE");
  unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
}

TEST(FromOptions, NotesGoToWhoeverListens) {
  Options::Values values(false);
  values.call("_Popart.set", {OptionValue("enableOutlining"), OptionValue(false)});
  std::vector<std::string> notes;
  {
    const NoteListener listener([&](log::Level level, const std::string& text) {
      if (level == log::Level::kInfo) notes.push_back(text);
    });
    programOf(values);
  }
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("enableOutlining is a hint"), std::string::npos);
}

TEST(FromOptions, ValuesThatWereTakenAwayAreNamed) {
  Options::Values values(false);
  values.erase("device_iterations");
  try {
    programOf(values);
    FAIL() << "nothing thrown";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("E0702 option-value: option device_iterations"), std::string::npos);
  }
}

}  // namespace
}  // namespace abele::host
