#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace abele::log {
namespace {

TEST(Log, KnowsItsLevels) {
  Level level = Level::kOff;
  EXPECT_TRUE(parseLevel("Debug", &level));
  EXPECT_EQ(level, Level::kDebug);
  EXPECT_TRUE(parseLevel("4", &level));
  EXPECT_EQ(level, Level::kErr);
  EXPECT_FALSE(parseLevel("5", &level));
  EXPECT_FALSE(parseLevel("TRACE_", &level));
  Detail detail = Detail::kNone;
  EXPECT_TRUE(parseLevel("DEBUG_IR", &level, &detail));
  EXPECT_EQ(level, Level::kDebug);
  EXPECT_EQ(detail, Detail::kGraphs);
}

// A single test, because a process configures its log once.
TEST(Log, WritesWhatTheEnvironmentAskedFor) {
  std::string file = testing::TempDir() + "/abele_log_test.txt";
  setenv("POPTORCH_LOG_LEVEL", "LOUD", 1);
  EXPECT_THROW(enabled(Level::kErr), UserError);
  setenv("POPTORCH_LOG_LEVEL", "info", 1);
  setenv("POPTORCH_LOG_DEST", "/dev/null/log.txt", 1);
  EXPECT_THROW(configureFromEnvironment(), UserError);
  setenv("POPTORCH_LOG_DEST", file.c_str(), 1);

  info("stage ", 2, " of {}");
  debug("not shown");
  setLevel(Level::kTrace);
  trace("shown");
  EXPECT_FALSE(shows(Detail::kGraphs));
  setLevel(Level::kTrace, Detail::kCalls);
  EXPECT_TRUE(shows(Detail::kGraphs));
  { CallScope scope("run"); }
  setMaxRepeats(2);
  for (int i = 0; i < 5; ++i) warn("again");
  setMaxRepeats(-1);
  setLevel(Level::kOff);
  err("not shown");
  EXPECT_EQ(level(), Level::kOff);

  std::ifstream in(file);
  std::string text(std::istreambuf_iterator<char>(in), {});
  const std::string start = "\\[[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9][0-9][0-9]\\] \\[poptorch:cpp\\] ";
  std::string expected;
  for (const char* line : {"\\[info\\] stage 2 of \\{\\}", "\\[trace\\] shown", "\\[trace\\] run begins",
                           "\\[trace\\] run ends", "\\[warning\\] again", "\\[warning\\] again \\(not shown again\\)"})
    expected += start + line + "\n";
  EXPECT_TRUE(testing::internal::RE::FullMatch(text, testing::internal::RE(expected))) << text;
}

}  // namespace
}  // namespace abele::log
