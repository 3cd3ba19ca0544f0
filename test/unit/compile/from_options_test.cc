// From the values of options to those of a program: one rule for C++ and for Python.
#include "compile/from_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../support/code_of.h"
#include "options/notes.h"

namespace abele::compile {
namespace {

using abele::test::codeOf;

ProgramOptions programOf(const Options::Values& values) { return programOptions(values, /*training=*/false); }

TEST(FromOptions, ProcessesThatShareACacheLockIt) {
  Options::Values values(false);
  values.call("enableExecutableCaching", {options::OptionValue("folder")});
  EXPECT_FALSE(programOf(values).cache_lock);
  values.call("Distributed.configureProcessId", {options::OptionValue(int64_t{0}), options::OptionValue(int64_t{2})});
  EXPECT_TRUE(programOf(values).cache_lock);
  EXPECT_EQ(programOf(values).cache_path, "folder");
  values.call("useIpuModel", {options::OptionValue(true)});
  EXPECT_EQ(programOf(values).cache_path, "");
}

TEST(FromOptions, FieldsNameOptionsOfTheTable) {
  const auto expectKnown = [](const std::string& key) {
    EXPECT_TRUE(options::expertSettings().contains(key) ||
                std::ranges::find(options::optionKeys(), key, &options::OptionKey::key) != options::optionKeys().end())
        << key;
  };
#define ABELE_OPTION(...)
#define ABELE_COMPILED_OF(key, ...) expectKnown(key);
#define ABELE_AT_RUN_OF ABELE_COMPILED_OF
#include "compile/program_options.def"
}

TEST(FromOptions, DeprecatedSpellingsCallTheSetters) {
  std::vector<std::string> heard;
  const options::NoteListener listener([&](log::Level, const std::string& text) { heard.push_back(text); });
  Options::Values values(false);
  for (int i = 0; i < 2; ++i) {
    values.call("_Popart.set", {options::OptionValue("abele.allowShortPipeline"), options::OptionValue(true)});
    values.call("_Popart.set", {options::OptionValue("abele.separateMemory"), options::OptionValue(true)});
  }
  EXPECT_EQ(*values.find("enforce_pipeline_minimum"), options::OptionValue(false));
  EXPECT_EQ(*values.find("separate_memory"), options::OptionValue(true));
  EXPECT_TRUE(values.expert("abele.separateMemory") == nullptr);
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_NE(heard[0].find("use options.enforcePipelineMinimum()"), std::string::npos) << heard[0];
  EXPECT_EQ(
      codeOf([&] { values.call("_Popart.set", {options::OptionValue("abele.nothing"), options::OptionValue(true)}); }),
      "E0701");
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
  values.call("_Popart.set", {options::OptionValue("enableOutlining"), options::OptionValue(false)});
  std::vector<std::string> notes;
  {
    const options::NoteListener listener([&](log::Level level, const std::string& text) {
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
}  // namespace abele::compile
