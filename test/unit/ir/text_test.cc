#include "ir/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace abele::ir {
namespace {

Type f32(std::vector<int64_t> sizes) { return contiguousType(DType::kFloat32, std::move(sizes)); }

// A graph that uses every field and every kind of argument.
Graph everything() {
  Graph g;
  g.name = "a \"name\"\n";
  g.training = true;
  g.random_draws = 16;
  g.normals = {.count = 7, .spare = 16};
  g.blocks = {{"", kNone, ""}, {"enc#1", 2, "train.py:10"}};
  g.stages = {{0, "0"}, {3, "2"}};
  g.externals = {{"w", InputKind::kParameter, f32({4, 8}), kNone, 0, true},
                 {"grad/w", InputKind::kAccumulator, f32({4, 8}), 0, 0, false},
                 {"exp_avg/w", InputKind::kState, f32({4, 8}), 0, -0.0, false},
                 {"constant/train.py:12", InputKind::kConstant, f32({}), kNone, 0, false}};
  ValueId x = g.addInput(f32({4, 8}), InputKind::kArgument, 0, "x");
  ValueId w = g.addInput(f32({4, 8}), InputKind::kParameter, 0, "w");
  g.addValue({}, kNone);  // the place of a removed value
  {
    Node& t = g.addNode("aten::t");
    t.args = {Arg::id(w)};
    t.is_view = true;
    t.results = {{g.addView({DType::kFloat32, {8, 4}, {1, 8}}, t.id, w, 0)}};
    t.block = 1;
  }
  ValueId whole = kNone;
  {
    Node& n = g.addNode("aten::add_.Tensor");
    n.args = {Arg::id(x), Arg::id(w), Arg::integer(1)};
    Write write{.arg = 0, .view = {DType::kFloat32, {4}, {8}}, .offset = 2, .before = x};
    write.after = whole = g.addValue(f32({4, 8}), n.id);
    n.writes = {write};
    n.results = {{kNone}};
    n.stage = 1;
    n.phase = 2;
    n.direction = Direction::kWeightGrad;
    n.random_draws = 4;
    n.random_offset = 12;
    n.normals = {.count = 3, .before = 4, .spare = 10};
    n.draws_vary = true;
    n.source = "train.py:88";
    n.scope = "encoder/layer.3";
    n.time_ns = 17;
  }
  Arg a;
  std::vector<Arg> args = {Arg::none(),
                           Arg::boolean(true),
                           Arg::boolean(false),
                           Arg::integer(-7),
                           Arg::real(1),
                           Arg::real(0.1),
                           Arg::real(-0.0),
                           Arg::real(1e300),
                           Arg::real(std::numeric_limits<double>::infinity()),
                           Arg::real(-std::numeric_limits<double>::infinity()),
                           Arg::string("a\\b\"c\x01\xc3\xa9"),
                           Arg::intList({}),
                           Arg::intList({1, -2}),
                           Arg::id(whole),
                           Arg::id(kNone),
                           Arg::idList({}),
                           Arg::idList({x, whole, kNone})};
  auto add = [&](Arg::Kind kind, auto&& fill) {
    Arg made;
    made.kind = kind;
    fill(made);
    args.push_back(made);
  };
  using Kind = Arg::Kind;
  add(Kind::kComplex, [](Arg& m) { m.d = 1.5, m.d2 = -2; });
  for (std::vector<double> list : {std::vector<double>{}, {1, 2.5}})
    add(Kind::kDoubleList, [&](Arg& m) { m.doubles = list; });
  for (std::vector<int64_t> list : {std::vector<int64_t>{}, {1, 0}})
    add(Kind::kBoolList, [&](Arg& m) { m.ints = list; });
  for (std::vector<std::string> list : {std::vector<std::string>{}, {"a", ""}})
    add(Kind::kStringList, [&](Arg& m) { m.strings = list; });
  for (std::vector<int64_t> list : {std::vector<int64_t>{}, {-1, 0}, {-1}})
    add(Kind::kOptionalIdList, [&](Arg& m) { m.ints = list; });
  add(Kind::kDevice, [](Arg& m) { m.s = "cuda:0"; });
  add(Kind::kGenerator, [](Arg&) {});
  add(Kind::kGenerator, [](Arg& m) { m.i = 2; });
  add(Kind::kNumber, [](Arg& m) { m.number_kind = Kind::kInt, m.i = 3; });
  add(Kind::kNumber, [](Arg& m) { m.number_kind = Kind::kBool, m.i = 1; });
  add(Kind::kNumber, [](Arg& m) { m.number_kind = Kind::kDouble, m.d = 2; });
  add(Kind::kNumber, [](Arg& m) { m.number_kind = Kind::kComplex, m.d = 2, m.d2 = 1; });
  Node& n = g.addNode("my_ops::foo.bar");
  n.args = args;
  n.direction = Direction::kBackward;
  n.results = {{g.addValue(f32({}), n.id)}, {}, {g.addValue(f32({0}), n.id), kNone}, {g.addValue({}, n.id)}, {kNone}};
  g.addNode("odd name").id = 40;
  g.addNode("aten::_assert");
  g.outputs = {{whole, OutputKind::kResult, 0},
               {whole, OutputKind::kLoss, kNone},
               {x, OutputKind::kGradient, 0},
               {whole, OutputKind::kUpdate, 1}};
  g.addValue({}, kNone);
  return g;
}

TEST(Text, ParseIsTheInverseOfPrint) {
  Graph g = everything();
  Graph back = parse(print(g));
  EXPECT_EQ(print(back), print(g));
  EXPECT_EQ(back.values, g.values);
  ASSERT_EQ(back.nodes.size(), g.nodes.size());
  for (size_t i = 0; i < g.nodes.size(); ++i) EXPECT_EQ(back.nodes[i], g.nodes[i]) << i;
  EXPECT_EQ(back.externals, g.externals);
  EXPECT_EQ(back, g);
}

TEST(Text, EqualityLeavesOutTimesAndNothingElse) {
  Graph g = everything(), other = g;
  other.nodes[0].time_ns = 99;
  EXPECT_EQ(other, g);
  other.nodes[0].scope = "x";
  EXPECT_FALSE(other == g);
}

TEST(Text, NotANumberComesBack) {
  Graph g;
  g.addNode("aten::foo").args = {Arg::real(std::numeric_limits<double>::quiet_NaN())};
  EXPECT_EQ(print(parse(print(g))), print(g));
  EXPECT_NE(print(g).find("aten.foo(nan)"), std::string::npos);
}

TEST(Text, IsReadable) {
  Graph g;
  g.stages = {{0, "0"}};
  ValueId x = g.addInput(f32({4, 8}), InputKind::kArgument, 0, "x");
  ValueId y = g.addInput(f32({4, 8}), InputKind::kArgument, 1, "");
  Node& n = g.addNode("aten::add.Tensor");
  n.args = {Arg::id(x), Arg::id(y), Arg::integer(1)};
  n.results = {{g.addValue(f32({4, 8}), n.id)}};
  n.stage = 0;
  n.direction = Direction::kBackward;
  n.source = "train.py:88";
  g.outputs = {{2, OutputKind::kResult, 0}};
  EXPECT_EQ(print(g), R"(graph @main {
  stage 0 "0" {device=0}
  input %0 "x": f32[4,8] = argument(0)
  input %1: f32[4,8] = argument(1)
  %2: f32[4,8] = aten.add.Tensor(%0, %1, 1) {stage=0, dir=bwd, src="train.py:88"}
  output result(0) %2
}
)");
}

std::string mistakesOf(const char* text) {
  try {
    parse(text);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0202);
    return error.message().found;
  }
  return "no mistake";
}

TEST(Text, TellsAllMistakesWithTheirLines) {
  EXPECT_EQ(mistakesOf("# a comment\n"
                       "graph @g {\n"
                       "  input %0: f31[4] = argument(0)\n"
                       "  %1: f32[4] = aten.relu(%0) {stge=1}\n"
                       "  %2: f32[4] = aten.add(%1, %7)\n"
                       "  %2: f32[4] = relu(%1)\n"
                       "}\n"
                       "more"),
            "line 3: unknown type f31\n"
            "line 4: unknown attribute stge\n"
            "line 5: %7 is not defined\n"
            "line 6: %2 is defined twice\n"
            "line 8: text after the closing brace at 'more'");
}

TEST(Text, RefusesWhatIsNoGraph) {
  EXPECT_EQ(mistakesOf(""), "line 1: expected 'graph @name {'");
  EXPECT_EQ(mistakesOf("graph @g {\n"), "line 1: expected '}' after the last line");
  EXPECT_EQ(mistakesOf("graph @g {\n  aten.f(\"x\n}\n"), "line 2: a string without its closing quote");
  EXPECT_EQ(mistakesOf("graph @g {\n  aten.f([1, true])\n}\n"), "line 2: elements of different kinds in one list");
  EXPECT_EQ(mistakesOf("graph @g {\n  aten.f([[1]])\n}\n"), "line 2: a list cannot hold a list");
  EXPECT_EQ(mistakesOf("graph @g {\n  aten.f(99999999999999999999)\n}\n"),
            "line 2: expected a number at '99999999999999999999'");
  EXPECT_EQ(mistakesOf("graph @g {\n  input %99999999: f32[] = argument\n}\n"),
            "line 2: index 99999999 out of range at '99999999: f32[] = ar'");
  EXPECT_EQ(mistakesOf("graph @g {\n  external 1 state \"s\": f32[2]{1,2}\n}\n"),
            "line 2: expected external 0, found external 1");
  EXPECT_EQ(mistakesOf("graph @g {\n  input %0: f32[99999999,99999999] = argument\n}\n"),
            "line 2: type f32 is larger than any memory");
  EXPECT_EQ(mistakesOf("graph @g {\n  relu(1)\n}\n"), "line 2: operator relu has no namespace: write aten.relu");
}

}  // namespace
}  // namespace abele::ir
