// abele::setLogLevel.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "abele/abele.h"

namespace log_test {

std::string logOf(const char* level) {
  abele::setLogLevel(level);
  testing::internal::CaptureStderr();
  auto model = abele::inferenceModel([](at::Tensor x) { return x + 1; });
  model({torch::ones({2})});
  return testing::internal::GetCapturedStderr();
}

TEST(LogLevel, DecidesWhatIsShown) {
  EXPECT_EQ(logOf("WARN"), "");
  EXPECT_NE(logOf("DEBUG").find("[poptorch:cpp] [debug] pass "), std::string::npos);
  EXPECT_NE(logOf("TRACE").find("lowered graph:"), std::string::npos);
  EXPECT_EQ(logOf("OFF"), "");
  EXPECT_THROW(abele::setLogLevel("LOUD"), abele::UserError);
  abele::setLogLevel("WARN");
}

}  // namespace log_test
