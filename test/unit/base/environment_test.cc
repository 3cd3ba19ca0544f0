#include "base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace abele {
namespace {

TEST(Environment, ReadsTextAndIntegers) {
  unsetenv("ABELE_TEST");
  EXPECT_EQ(environmentText("ABELE_TEST"), "");
  EXPECT_EQ(environmentInteger("ABELE_TEST", 7), 7);
  setenv("ABELE_TEST", "-12", 1);
  EXPECT_EQ(environmentInteger("ABELE_TEST", 7), -12);
  for (const char* wrong : {"x", "1.5", "3 ", "99999999999999999999"}) {
    setenv("ABELE_TEST", wrong, 1);
    EXPECT_THROW(environmentInteger("ABELE_TEST", 7), UserError) << wrong;
  }
}

}  // namespace
}  // namespace abele
