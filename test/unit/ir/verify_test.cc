#include "ir/verify.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/text.h"

namespace abele::ir {
namespace {

// Findings of a text, joined.
std::string findings(const char* body, Form form = Form::kCaptured, const char* header = "graph @g {training} {\n") {
  std::string all;
  for (const std::string& finding : verify(parse(std::string(header) + body + "}\n"), form)) all += finding + "\n";
  return all;
}

TEST(Verify, AcceptsAGraph) {
  EXPECT_EQ(findings("external 0 parameter \"w\": f32[4,8] {trainable}\n"
                     "input %0: f32[4,8] = argument(0)\n"
                     "input %1: f32[4,8] = parameter(0)\n"
                     "%2: f32[8,4]{1,8} view(%1+0) = aten.t(%1)\n"
                     "%3: f32[4,4] = aten.mm(%0, %2)\n"
                     "_ = aten.fill_.Scalar(%3, 0) writes(0: %3 -> %4: f32[4,4] at f32[4]{1}+12)\n"
                     "output loss %4\n"),
            "");
}

TEST(Verify, ViewsLieInsideTheirBase) {
  EXPECT_EQ(findings("input %0: f32[4] = argument(0)\n%1: f32[3] view(%0+2) = aten.slice.Tensor(%0, 0, 2, 5, 1)\n"),
            "%1 of type f32[3] at 2 is not inside its base %0 of type f32[4]\n");
  EXPECT_EQ(findings("input %0: f32[4] = argument(0)\n%1: f64[2] view(%0+0) = aten.view.dtype(%0, 7)\n"), "");
  EXPECT_EQ(findings("input %0: f32[4] = argument(0)\n%1: f32[2] view(%0+0) = aten.narrow(%0)\n"
                     "%2: f32[1] view(%1+0) = aten.narrow(%1)\n"),
            "%2 is a view of %1, which is a view itself\n");
}

TEST(Verify, OperandsComeFirst) {
  EXPECT_EQ(findings("%1: f32[2] = aten.relu(%2) {src=\"a.py:3\"}\n%2: f32[2] = aten.relu(%1)\n"),
            "node 0 aten::relu (a.py:3) reads %2 before it is made\n");
}

TEST(Verify, InputsMatchTheirExternals) {
  EXPECT_EQ(findings("external 0 buffer \"b\": f32[2]\ninput %0: f32[3] = buffer(0)\ninput %1: f32[3] = state(1)\n"),
            "input %0 of type f32[3] is external b of type f32[2]\n"
            "input %1 is external 1, which does not exist\n");
}

TEST(Verify, WritesStayInsideAndKeepTheType) {
  EXPECT_EQ(findings("input %0: f32[4] = argument(0)\n"
                     "_ = aten.fill_.Scalar(%0, 1) writes(0: %0 -> %1: f32[5] at f32[2]+3)\n"
                     "_ = aten.fill_.Scalar(%0, 1) writes(1: %0 -> %2: f32[4])\n"),
            "node 0 aten::fill_.Scalar writes %0 of type f32[4] into %1 of type f32[5]\n"
            "node 0 aten::fill_.Scalar writes f32[2] at 3, outside %0 of type f32[4]\n"
            "node 1 aten::fill_.Scalar writes %0 but argument 1 is not %0\n");
}

TEST(Verify, ViewNodesMakeViewsOfTheirOperands) {
  EXPECT_EQ(findings("input %0: f32[4] = argument(0)\n%1: f32[4] = aten.view(%0, [4]) {view=true}\n"),
            "node 0 aten::view makes %1, which is not a view of an operand\n");
}

TEST(Verify, OutputsAreUniqueAndTyped) {
  EXPECT_EQ(findings("external 0 buffer \"b\": f32[2]\ninput %0: f32[3] = argument(0)\n"
                     "output update(0) %0\noutput gradient(0) %0\noutput loss %0\noutput loss %0\n"),
            "output update(0) has type f32[3] but b has f32[2]\n"
            "output gradient(0) is of b, a buffer\n"
            "output loss(-1) exists twice\n");
}

TEST(Verify, DirectionsGoOneWay) {
  EXPECT_EQ(findings("%0: f32[] = aten.a() {dir=bwd}\n%1: f32[] = aten.b(%0)\n"
                     "%2: f32[] = aten.c() {dir=update}\n%3: f32[] = aten.d(%2) {dir=bwd}\n"),
            "node 1 aten::b is a forward node but reads %0 of node 0 aten::a\n"
            "node 3 aten::d runs every micro-batch but reads %2 of node 2 aten::c\n");
  EXPECT_EQ(findings("%0: f32[] = aten.a() {dir=bwd}\n", Form::kCaptured, "graph @g {\n"),
            "node 0 aten::a has direction bwd in a graph for inference\n");
}

TEST(Verify, RandomDrawsHaveAPlace) {
  EXPECT_EQ(findings("%0: f32[] = aten.rand() {draws=4, offset=-1}\n", Form::kCaptured, "graph @g {draws=8} {\n"),
            "node 0 aten::rand draws 4 numbers at -1\n");
  EXPECT_EQ(findings("%0: f32[] = aten.rand() {draws=4, offset=8}\n", Form::kCaptured, "graph @g {draws=8} {\n"), "");
}

TEST(Verify, FormsAddRules) {
  const char* text =
      "external 0 parameter \"w\": f32[4] {trainable}\ninput %0: f32[4] = parameter(0)\n"
      "%1: f32[4] view(%0+0) = aten.alias(%0)\n%2: f32[4] = aten.neg(%1) {block=2}\noutput gradient(0) %2\n";
  std::string captured = "node 1 aten::neg is in block 2, which does not exist\n";
  std::string normal = captured + "%1 is the same as its base %0\n";
  std::string staged = normal + "node 0 aten::alias has no stage\nnode 1 aten::neg has no stage\n";
  EXPECT_EQ(findings(text, Form::kCaptured), captured);
  EXPECT_EQ(findings(text, Form::kNormal), normal);
  EXPECT_EQ(findings(text, Form::kStaged), staged);
  EXPECT_EQ(findings(text, Form::kLowered), staged + "the gradient of external 0 is still an output\n");
}

TEST(Verify, GradientsFlowToEarlierStages) {
  EXPECT_EQ(findings("stage 0 \"0\"\nstage 1 \"1\"\n%0: f32[] = aten.a() {stage=0, dir=bwd}\n"
                     "%1: f32[] = aten.b(%0) {stage=1, dir=bwd}\n",
                     Form::kStaged),
            "node 1 aten::b in stage 1 reads %0 made in stage 0, whose backward runs later\n");
}

TEST(Verify, BlamesTheUserOrAbele) {
  Graph g = parse("graph @g {\n  %1: f32[2] = aten.relu(%1)\n}\n");
  EXPECT_THROW(requireValid(g, Form::kCaptured, /*from_user=*/true), UserError);
  EXPECT_THROW(requireValid(g, Form::kCaptured), InternalError);
}

}  // namespace
}  // namespace abele::ir
