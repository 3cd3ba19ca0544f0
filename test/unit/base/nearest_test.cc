#include "base/nearest.h"

#include <gtest/gtest.h>

namespace abele {
namespace {

const std::vector<std::string> kNames = {"deviceIterations", "replicationFactor", "outputMode", "logDir"};

TEST(Nearest, FindsTheNameThatWasMeant) {
  EXPECT_EQ(nearestName("deviceIteration", kNames), "deviceIterations");
  EXPECT_EQ(nearestName("device_iterations", kNames), "deviceIterations");
  EXPECT_EQ(nearestName("OUTPUTMODE", kNames), "outputMode");
  EXPECT_EQ(nearestName("outptuMode", kNames), "outputMode");
  EXPECT_EQ(nearestName("replicatonFactors", kNames), "replicationFactor");
  EXPECT_EQ(nearestName("logdir", kNames), "logDir");
  EXPECT_EQ(nearestName("logDi", {"log_dir", "logDir"}), "logDir");
  EXPECT_EQ(nearestName("log_di", {"logDir", "log_dir"}), "log_dir");
  EXPECT_EQ(nearestName("traceModel", {"logDir", "Jit.traceModel"}), "Jit.traceModel");
}

TEST(Nearest, SaysNothingOfNamesThatAreFar) {
  EXPECT_EQ(nearestName("threads", kNames), "");
  EXPECT_EQ(nearestName("", kNames), "");
  EXPECT_EQ(nearestName("x", {}), "");
  EXPECT_EQ(didYouMean("threads", kNames, "see docs"), "see docs");
  EXPECT_EQ(didYouMean("outputMod", kNames), "did you mean outputMode?");
}

TEST(Nearest, ListsWhatThereIs) {
  EXPECT_EQ(oneOf({}), "");
  EXPECT_EQ(oneOf({"a"}), "a");
  EXPECT_EQ(oneOf({"a", "b"}), "a or b");
  EXPECT_EQ(oneOf({"a", "b", "c"}), "a, b or c");
}

}  // namespace
}  // namespace abele
