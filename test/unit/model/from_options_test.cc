// From the values of options to those of a program: one rule for C++ and for Python.
#include "compile/from_options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../../support/code_of.h"
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

TEST(FromOptions, ExpertSettingsWinOverWhatAPackageAsksFor) {
  Options::Values values(false);
  values.set("Options", "enforce_pipeline_minimum", OptionValue(true));
  EXPECT_TRUE(programOf(values).enforce_pipeline_minimum);
  EXPECT_TRUE(programOf(values).share_weights);
  values.call("_Popart.set", {OptionValue("abele.allowShortPipeline"), OptionValue(true)});
  values.call("_Popart.set", {OptionValue("abele.shareWeights"), OptionValue(false)});
  EXPECT_FALSE(programOf(values).enforce_pipeline_minimum);
  EXPECT_FALSE(programOf(values).share_weights);
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
