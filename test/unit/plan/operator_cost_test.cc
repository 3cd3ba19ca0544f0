#include "plan/operator_cost.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"

namespace abele::plan {
namespace {

// The time of the last node of a graph with these lines.
int64_t nsOf(const std::string& lines) {
  const ir::Graph graph =
      ir::parse(cat("\ngraph @main {\n  stage 0 \"s0\" {device=0}\n", lines, "  output result(0) %9\n}\n"));
  return estimateNodeNs(graph, graph.nodes.back());
}

std::string input(int value, const std::string& type) {
  return cat("  input %", value, " \"x", value, "\": ", type, " = argument(", value, ")\n");
}

TEST(OperatorCost, ALookupReadsTheRowsThatItGives) {
  const auto lookup = [](int64_t rows) {
    return nsOf(cat(input(0, cat("f32[", rows, ",64]")), input(1, "i64[8]"),
                    "  %9: f32[8,64] = aten.embedding(%0, %1) {stage=0}\n"));
  };
  EXPECT_EQ(lookup(100), lookup(1'000'000));
}

TEST(OperatorCost, AttentionIsWorkForEachPairOfQueryAndKey) {
  const auto attention = [](int64_t length) {
    const std::string type = cat("f32[1,4,", length, ",32]");
    return nsOf(cat(input(0, type), input(1, type), input(2, type), "  %9: ", type,
                    " = aten._scaled_dot_product_flash_attention_for_cpu(%0, %1, %2) {stage=0}\n"));
  };
  EXPECT_GT(attention(2048), 12 * attention(512));
}

TEST(OperatorCost, RecurrentLayersCountTheProductsOfTheirSteps) {
  const auto layer = [](const std::string& op, int64_t hidden) {
    return nsOf(cat(input(0, "f32[64,4,256]"), input(1, cat("f32[", 4 * hidden, ",256]")),
                    input(2, cat("f32[", 4 * hidden, ",", hidden, "]")), "  %9: f32[64,4,", hidden, "] = ", op,
                    "(%0, %1, %2) {stage=0}\n"));
  };
  const int64_t forward = layer("aten.mkldnn_rnn_layer", 256);
  EXPECT_GT(layer("aten.mkldnn_rnn_layer", 512), 2 * forward);
  EXPECT_GT(layer("aten.mkldnn_rnn_layer_backward", 256), 3 * forward / 2);
  const int64_t products = 64 * nsOf(cat(input(0, "f32[4,512]"), input(1, "f32[512,1024]"),
                                         "  %9: f32[4,1024] = aten.mm(%0, %1) {stage=0}\n"));
  EXPECT_GT(forward, products / 3);
  EXPECT_LT(forward, products * 3);
}

TEST(OperatorCost, ATransposedConvolutionCostsAsMuchAsTheOneThatItTurnsRound) {
  const auto convolution = [](const std::string& in, const std::string& weight, const std::string& out,
                              bool transposed) {
    return nsOf(cat(input(0, in), input(1, weight), "  %9: ", out,
                    " = aten.convolution(%0, %1, none, [2, 2], [1, 1], "
                    "[1, 1], ",
                    transposed ? "true" : "false", ", [0, 0], 1) {stage=0}\n"));
  };
  const int64_t down = convolution("f32[8,32,64,64]", "f32[64,32,4,4]", "f32[8,64,32,32]", false);
  const int64_t up = convolution("f32[8,64,32,32]", "f32[64,32,4,4]", "f32[8,32,64,64]", true);
  EXPECT_EQ(down, up);
}

TEST(OperatorCost, FunctionsAndRandomNumbersCostMoreThanCopies) {
  const auto unary = [](const std::string& call) {
    return nsOf(cat(input(0, "f32[1000000]"), "  %9: f32[1000000] = ", call, "\n"));
  };
  const int64_t copy = unary("aten.clone(%0) {stage=0}");
  EXPECT_GT(unary("aten.tanh(%0) {stage=0}"), 2 * copy);
  EXPECT_GT(unary("aten.tanh_backward(%0) {stage=0}"), unary("aten.tanh(%0) {stage=0}"));
  EXPECT_EQ(unary("aten.relu(%0) {stage=0}"), copy);
}

}  // namespace
}  // namespace abele::plan
