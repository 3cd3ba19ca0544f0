// What depends on the strides of a buffer.
#include "capture/stride_readers.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace abele::capture {
namespace {

/// The operator that depends on the strides of %0, a buffer of two rows; "" if none does. %1 is an argument of its
/// shape.
std::string readerIn(const std::string& nodes) {
  const ir::Graph graph = ir::parse(
      "graph @g {\n"
      "  external 0 buffer \"b\": f32[2,4]\n"
      "  input %0: f32[2,4] = buffer(0)\n"
      "  input %1: f32[2,4] = argument(0)\n" +
      nodes + "}\n");
  const ir::Node* reader = firstReaderOfStrides(graph, 0);
  return reader == nullptr ? "" : reader->op;
}

TEST(StrideReaders, SumsAndApproximationsAreReaders) {
  EXPECT_EQ(readerIn("  %2: f32[] = aten.sum(%0)\n"), "aten::sum");
  EXPECT_EQ(readerIn("  %2: f32[2,4] = aten.exp(%0)\n"), "aten::exp");
  EXPECT_EQ(readerIn("  %2: f32[4] view(%0+4) = aten.select.int(%0, 0, 1)\n"
                     "  %3: f32[] = aten.sum(%2)\n"),
            "aten::sum");
  EXPECT_EQ(readerIn("  %2: f32[] = aten.sum(%1)\n"), "");
  EXPECT_EQ(readerIn("  %2: f32[] view(%0+5) = aten.as_strided(%0, [], [], 5)\n"
                     "  %3: f32[] = aten.exp(%2)\n"),
            "");
}

TEST(StrideReaders, ExactOperatorsHandStridesOn) {
  EXPECT_EQ(readerIn("  %2: f32[2,4] = aten.mul.Tensor(%0, %1)\n"), "");
  EXPECT_EQ(readerIn("  %2: f32[2,4] = aten.mul.Tensor(%0, %1)\n"
                     "  %3: f32[] = aten.sum(%2)\n"),
            "aten::sum");
  // The first operand decides the strides of the result.
  EXPECT_EQ(readerIn("  %2: f32[2,4] = aten.mul.Tensor(%1, %0)\n"
                     "  %3: f32[] = aten.sum(%2)\n"),
            "");
  EXPECT_EQ(readerIn("  %2: f32[4] view(%1+0) = aten.select.int(%1, 0, 0)\n"
                     "  %3: f32[2,4] = aten.mul.Tensor(%2, %0)\n"
                     "  %4: f32[] = aten.sum(%3)\n"),
            "aten::sum");
}

TEST(StrideReaders, AScaledSumIsRoundedTwice) {
  EXPECT_EQ(readerIn("  %2: f32[2,4] = aten.add.Tensor(%1, %0, 1)\n"), "");
  EXPECT_EQ(readerIn("  %2: f32[2,4] = aten.add.Tensor(%1, %0, 0.3)\n"), "aten::add.Tensor");
}

TEST(StrideReaders, WrittenMemoryKeepsItsStrides) {
  EXPECT_EQ(readerIn("  _ = aten.copy_(%0, %1, false) writes(0: %0 -> %2: f32[2,4])\n"
                     "  %3: f32[] = aten.sum(%2)\n"),
            "aten::sum");
  EXPECT_EQ(readerIn("  _ = aten.copy_(%1, %0, false) writes(0: %1 -> %2: f32[2,4])\n"
                     "  %3: f32[] = aten.sum(%2)\n"),
            "");
}

}  // namespace
}  // namespace abele::capture
