#include "compile/shard_trials.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "../../support/code_of.h"
#include "base/cat.h"
#include "ir/text.h"

namespace abele::compile {
namespace {

using abele::test::codeOf;

constexpr int kThreads = 2;

const std::string kInputs = R"(
  input %0 "x": f32[64,96] = argument(0)
  input %1 "w": f32[96,64] = argument(1)
)";

std::string whole(const std::string& type = "f32[64,64]") {
  return cat("graph @whole {", kInputs, "  %2: ", type, " = aten.mm(%0, %1)\n  output result(0) %2\n}\n");
}

bool agree(const std::string& one, const std::string& other, int threads = kThreads) {
  return givesSameBits(ir::parse(one), ir::parse(other), threads);
}

const std::string kByFeatures = cat("graph @parts {", kInputs, R"(
  %2: f32[96,32]{64,1} view(%1+0) = aten.slice(%1)
  %3: f32[64,32] = aten.mm(%0, %2)
  %4: f32[96,32]{64,1} view(%1+32) = aten.slice(%1)
  %5: f32[64,32] = aten.mm(%0, %4)
  %6: f32[64,64] = aten.cat([%3, %5], 1)
  output result(0) %6
}
)");

const std::string kByReduction = cat("graph @parts {", kInputs, R"(
  %2: f32[64,48]{96,1} view(%0+0) = aten.slice(%0)
  %3: f32[48,64] view(%1+0) = aten.slice(%1)
  %4: f32[64,64] = aten.mm(%2, %3)
  %5: f32[64,48]{96,1} view(%0+48) = aten.slice(%0)
  %6: f32[48,64] view(%1+3072) = aten.slice(%1)
  %7: f32[64,64] = aten.mm(%5, %6)
  %8: f32[64,64] = aten.add.Tensor(%4, %7, 1)
  output result(0) %8
}
)");

TEST(ShardTrials, PartsOfWhatAProductMakesHaveItsBits) {
  EXPECT_TRUE(agree(whole(), kByFeatures));
  EXPECT_TRUE(agree(whole(), kByFeatures, /*threads=*/1));
}

TEST(ShardTrials, SumsOfPartsHaveOtherBits) { EXPECT_FALSE(agree(whole(), kByReduction)); }

TEST(ShardTrials, AResultOfOtherStridesOrSizesThanTheGraphSaysIsRefused) {
  for (const char* type : {"f32[64,64]{1,64}", "f32[32,64]", "f64[64,64]"})
    EXPECT_FALSE(agree(whole(type), whole(type))) << type;
}

TEST(ShardTrials, WhatATenRefusesIsRefused) {
  const std::string wrong =
      "graph @wrong {\n  input %0: f32[4,8] = argument(0)\n  %1: f32[4,4] = aten.mm(%0, %0)\n"
      "  output result(0) %1\n}\n";
  EXPECT_FALSE(agree(wrong, wrong));
  const std::string unknown =
      "graph @unknown {\n  input %0: f32[4] = argument(0)\n  %1: f32[4] = aten.no_such(%0)\n"
      "  output result(0) %1\n}\n";
  EXPECT_FALSE(agree(unknown, unknown));
}

// Rows of a table that several indices name, a mask, a type without normal numbers; views of results.
TEST(ShardTrials, InputsAreOfEveryType) {
  const std::string inputs = R"(
  input %0 "gradient": f32[8,16,4]{1,32,8} = argument(0)
  input %1 "indices": i64[8,16] = argument(1)
  input %2 "mask": bool[8,16,1] = argument(2)
  input %3 "half": bf16[8,16,4] = argument(3)
)";
  const std::string one = cat("graph @one {", inputs, R"(
  %4: f32[8,16,4] = aten.masked_fill.Scalar(%0, %2, 0)
  %5: f32[100,4] = aten.embedding_dense_backward(%4, %1, 100, -1, false)
  %6: bf16[8,16,4] = aten.mul.Tensor(%3, %3)
  %7: bf16[4,16,4] view(%6+256) = aten.slice(%6)
  output result(0) %5
  output result(1) %7
}
)");
  const std::string other = cat("graph @other {", inputs, R"(
  %4: f32[8,16,4] = aten.masked_fill.Scalar(%0, %2, 0)
  %5: f32[100,4] = aten.embedding_dense_backward(%4, %1, 100, -1, false)
  %6: bf16[4,16,4] view(%3+256) = aten.slice(%3)
  %7: bf16[4,16,4] = aten.mul.Tensor(%6, %6)
  output result(0) %5
  output result(1) %7
}
)");
  EXPECT_TRUE(agree(one, other));
}

TEST(ShardTrials, TheCallerKeepsItsThreadsAndItsRandomStream) {
  const auto now = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
  const at::Tensor before = now();
  const int threads = at::get_num_threads();
  const std::string draws =
      "graph @draws {\n  input %0: f32[64,64] = argument(0)\n"
      "  %1: f32[64,64] = aten.bernoulli.p(%0, 0.5, generator) {draws=4096, offset=0}\n"
      "  output result(0) %1\n}\n";
  EXPECT_TRUE(agree(draws, draws, threads + 1));
  EXPECT_TRUE(before.equal(now()));
  EXPECT_EQ(at::get_num_threads(), threads);
}

TEST(ShardTrials, TheEnvironmentMakesThemFail) {
  const auto with = [](const char* value) {
    ::setenv("ABELE_SHARD_TRIALS", value, 1);
    std::string code;
    bool agrees = false;
    code = codeOf([&] { agrees = agree(whole(), kByFeatures); });
    ::unsetenv("ABELE_SHARD_TRIALS");
    return agrees ? "agrees" : code;
  };
  EXPECT_EQ(with("fail"), codeOf([] {}));
  EXPECT_EQ(with("pass"), "E0702");
  EXPECT_EQ(with(""), "agrees");
}

}  // namespace
}  // namespace abele::compile
