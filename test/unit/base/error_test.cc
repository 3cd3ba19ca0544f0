#include "base/error.h"

#include <gtest/gtest.h>

namespace abele {
namespace {

TEST(Error, RendersTheKnownParts) {
  UserError error(ErrorCode::E0303, {.what = "a value flows back",
                                     .at = "train.py:88",
                                     .found = "one\ntwo",
                                     .expected = "forward",
                                     .remedy = "move it"});
  EXPECT_STREQ(error.what(),
               "E0303 stage-order: a value flows back\n"
               "  at        train.py:88\n"
               "  found     one\n"
               "            two\n"
               "  expected  forward\n"
               "  try       move it");
  EXPECT_STREQ(UserError(ErrorCode::E0701, {.what = "no option x"}).what(), "E0701 unknown-option: no option x");
}

TEST(Error, ContextIsAddedBelow) {
  DeviceError error(ErrorCode::E0601, {.what = "it threw"}, "IPU_RESET");
  error.addContext("in stage 2");
  error.addContext("in micro-batch 5");
  EXPECT_STREQ(error.what(), "E0601 worker-failed: it threw\n  in        in stage 2\n            in micro-batch 5");
  EXPECT_EQ(error.recoveryAction(), "IPU_RESET");
}

TEST(Error, RequireBlamesTheProgramAndCheckBlamesAbele) {
  int n = 0;
  try {
    ABELE_REQUIRE(n >= 1, E0702, {.what = cat("gradient accumulation is ", n)});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.message().what, "gradient accumulation is 0");
  }
  try {
    ABELE_CHECK(n == 1, "slot ", n);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0001);
    EXPECT_NE(std::string(error.what()).find("slot 0"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("error_test.cc:"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("please report"), std::string::npos);
  }
}

TEST(Error, CodesKnowTheirRows) {
  EXPECT_STREQ(errorCodeText(ErrorCode::E0901), "E0901");
  EXPECT_STREQ(errorName(ErrorCode::E0202), "parse");
  EXPECT_STREQ(errorSummary(ErrorCode::E0202), "text that is not a graph");
}

TEST(Cat, JoinsAnything) { EXPECT_EQ(cat("a", 1, ' ', 0.1, true, std::string("b")), "a1 0.1trueb"); }

}  // namespace
TEST(Language, WritesPhrasesAsTheFrontEndSays) {
  EXPECT_EQ(inLanguage("Options::x"), "Options::x");
  setPhrases({{"Options::x", "opts.x"}});
  EXPECT_EQ(inLanguage("Options::x"), "opts.x");
  EXPECT_EQ(inLanguage("Options::y"), "Options::y");
  setPhrases({});
}

}  // namespace abele
