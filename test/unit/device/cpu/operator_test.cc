// Operators give eager's bits, for every way to call them.
#include "harness.h"
#include "memory/steering_allocator.h"

namespace abele::device::testing {
namespace {

const exe::ExternalKind kParameter = exe::ExternalKind::kParameter;

TEST(Operator, ChainOfOutVariantsAndFunctionals) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({6, 8}), w = at::randn({8, 8}), b = at::randn({8});
  Program p;
  const int32_t in = p.input(f32({6, 8})), weight = p.external(f32({8, 8}), kParameter),
                bias = p.external(f32({8}), kParameter);
  const int32_t product = p.value(f32({6, 8})), sum = p.value(f32({6, 8})), positive = p.value(f32({6, 8}));
  p.op("aten::mm", {Arg::id(in), Arg::id(weight)}, {product});
  p.op("aten::add.Tensor", {Arg::id(product), Arg::id(bias), Arg::real(0.5)}, {sum});
  p.op("aten::relu", {Arg::id(sum)}, {positive});
  p.op("aten::mul.Tensor", {Arg::id(positive), number(1.25)}, {sum});
  p.emit(sum);
  Runner runner(p);
  runner.backend().upload(0, w);
  runner.backend().upload(1, b);
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(sameBits(runner.step({x + i})[0][0], at::relu(at::mm(x + i, w) + b * 0.5) * 1.25));
}

TEST(Operator, ReadsTransposedViewsOfAWeight) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({5, 7}), w = at::randn({3, 7}), b = at::randn({3});
  Program p;
  const int32_t in = p.input(f32({5, 7}));
  p.external(f32({3, 7}), kParameter);
  const int32_t bias = p.external(f32({3}), kParameter);
  const int32_t transposed = p.slotAt(p.weights, 0, {DType::kFloat32, {7, 3}, {1, 7}});
  const int32_t out = p.value(f32({5, 3}));
  p.op("aten::addmm", {Arg::id(bias), Arg::id(in), Arg::id(transposed), Arg::integer(1), Arg::integer(1)}, {out});
  p.emit(out);
  Runner runner(p);
  runner.backend().upload(0, w);
  runner.backend().upload(1, b);
  EXPECT_TRUE(sameBits(runner.step({x})[0][0], at::addmm(b, x, w.t())));
}

TEST(Operator, SeveralResultsSomeDropped) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({4, 16}), w = at::randn({16}), b = at::randn({16});
  Program p;
  const int32_t in = p.input(f32({4, 16})), weight = p.external(f32({16}), kParameter),
                bias = p.external(f32({16}), kParameter);
  const int32_t out = p.value(f32({4, 16})), rstd = p.value(f32({4, 1})), soft = p.value(f32({4, 16}));
  p.op("aten::native_layer_norm", {Arg::id(in), Arg::intList({16}), Arg::id(weight), Arg::id(bias), Arg::real(1e-5)},
       {out, -1, rstd});
  p.op("aten::_softmax", {Arg::id(out), Arg::integer(-1), Arg::boolean(false)}, {soft});
  p.emit(out);
  p.emit(rstd);
  p.emit(soft);
  Runner runner(p);
  runner.backend().upload(0, w);
  runner.backend().upload(1, b);
  for (int i = 0; i < 3; ++i) {
    const auto [norm, mean, expected_rstd] = at::native_layer_norm(x * (i + 1), {16}, w, b, 1e-5);
    const auto result = runner.step({x * (i + 1)});
    EXPECT_TRUE(sameBits(result[0][0], norm));
    EXPECT_TRUE(sameBits(result[1][0], expected_rstd));
    EXPECT_TRUE(sameBits(result[2][0], at::softmax(norm, -1)));
  }
}

TEST(Operator, MaxPoolWithDroppedIndices) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({2, 3, 8, 8});
  const auto [expected, indices] = at::max_pool2d_with_indices(x, {2, 2}, {2, 2});
  Program p;
  const int32_t in = p.input(f32({2, 3, 8, 8})), out = p.value(f32({2, 3, 4, 4}));
  p.op("aten::max_pool2d_with_indices",
       {Arg::id(in), Arg::intList({2, 2}), Arg::intList({2, 2}), Arg::intList({0, 0}), Arg::intList({1, 1}),
        Arg::boolean(false)},
       {out, -1});
  p.emit(out);
  Runner runner(p);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(sameBits(runner.step({x})[0][0], expected));
}

TEST(Operator, ConvolutionForwardAndBackward) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({2, 3, 9, 9}), w = at::randn({4, 3, 3, 3}), b = at::randn({4});
  const at::Tensor y = at::convolution(x, w, b, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1), g = at::randn_like(y);
  const auto [grad_x, grad_w, grad_b] = at::convolution_backward(g, x, w, at::IntArrayRef{4}, {1, 1}, {1, 1}, {1, 1},
                                                                 false, {0, 0}, 1, {true, true, true});
  Program p;
  const int32_t in = p.input(f32({2, 3, 9, 9})), grad = p.input(f32({2, 4, 9, 9}));
  const int32_t weight = p.external(f32({4, 3, 3, 3}), kParameter), bias = p.external(f32({4}), kParameter);
  const int32_t out = p.value(typeOf(y)), gx = p.value(typeOf(grad_x)), gw = p.value(typeOf(grad_w)),
                gb = p.value(typeOf(grad_b));
  const std::vector<Arg> geometry = {Arg::intList({1, 1}), Arg::intList({1, 1}), Arg::intList({1, 1}),
                                     Arg::boolean(false),  Arg::intList({0, 0}), Arg::integer(1)};
  std::vector<Arg> forward = {Arg::id(in), Arg::id(weight), Arg::id(bias)};
  forward.insert(forward.end(), geometry.begin(), geometry.end());
  std::vector<Arg> backward = {Arg::id(grad), Arg::id(in), Arg::id(weight), Arg::intList({4})};
  backward.insert(backward.end(), geometry.begin(), geometry.end());
  backward.push_back(boolList({1, 1, 1}));
  p.op("aten::convolution", forward, {out});
  p.op("aten::convolution_backward", backward, {gx, gw, gb});
  for (const int32_t slot : {out, gx, gw, gb}) p.emit(slot);
  Runner runner(p);
  runner.backend().upload(0, w);
  runner.backend().upload(1, b);
  for (int i = 0; i < 3; ++i) {
    const auto result = runner.step({x, g});
    EXPECT_TRUE(sameBits(result[0][0], y));
    EXPECT_TRUE(sameBits(result[1][0], grad_x));
    EXPECT_TRUE(sameBits(result[2][0], grad_w));
    EXPECT_TRUE(sameBits(result[3][0], grad_b));
  }
}

TEST(Operator, BatchNormUpdatesRunningStatistics) {
  at::manual_seed(6);
  const at::Tensor x = at::randn({8, 4, 3, 3}), w = at::randn({4}), b = at::randn({4});
  at::Tensor mean = at::zeros({4}), var = at::ones({4});
  Program p;
  const int32_t in = p.input(f32({8, 4, 3, 3})), weight = p.external(f32({4}), kParameter),
                bias = p.external(f32({4}), kParameter);
  const int32_t running_mean = p.external(f32({4}), exe::ExternalKind::kBuffer),
                running_var = p.external(f32({4}), exe::ExternalKind::kBuffer);
  const int32_t out = p.value(f32({8, 4, 3, 3})), save_mean = p.value(f32({4})), save_std = p.value(f32({4}));
  p.op("aten::native_batch_norm",
       {Arg::id(in), Arg::id(weight), Arg::id(bias), Arg::id(running_mean), Arg::id(running_var), Arg::boolean(true),
        Arg::real(0.1), Arg::real(1e-5)},
       {out, save_mean, save_std})
      .writes = {running_mean, running_var};
  p.emit(out);
  p.emit(save_std);
  Runner runner(p);
  const std::vector<at::Tensor> initial = {w, b, mean, var};
  for (int32_t i = 0; i < 4; ++i) runner.backend().upload(i, initial[i]);
  for (int i = 0; i < 3; ++i) {
    const auto [expected, expected_mean, expected_std] = at::native_batch_norm(x + i, w, b, mean, var, true, 0.1, 1e-5);
    const auto result = runner.step({x + i});
    EXPECT_TRUE(sameBits(result[0][0], expected));
    EXPECT_TRUE(sameBits(result[1][0], expected_std));
    EXPECT_TRUE(sameBits(runner.backend().external(2), mean));
    EXPECT_TRUE(sameBits(runner.backend().external(3), var));
  }
}

TEST(Operator, WritesAViewOfAValueInPlace) {
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  Program p;
  const int32_t in = p.input(f32({3, 4})), copy = p.value(f32({3, 4}));
  const int32_t row = p.slotAt(p.values, 16, f32({4})), column = p.slotAt(p.values, 4, {DType::kFloat32, {3}, {4}});
  const int32_t first_row = p.slotAt(p.values, 0, f32({4}));
  p.op("abele::copy", {Arg::id(copy), Arg::id(in)});
  p.op("aten::add_.Tensor", {Arg::id(row), Arg::id(first_row), Arg::integer(2)}).writes = {row};
  p.op("aten::mul_.Tensor", {Arg::id(column), number(3)}).writes = {column};
  p.op("aten::relu_", {Arg::id(copy)}, {-1}).writes = {copy};
  p.emit(copy);
  Runner runner(p);
  at::Tensor expected = x - 5;
  expected[1].add_(expected[0], 2);
  expected.select(1, 1).mul_(3);
  EXPECT_TRUE(sameBits(runner.step({x - 5})[0][0], expected.relu()));
}

TEST(Operator, TensorListsGoInAndOut) {
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  Program p;
  const int32_t in = p.input(f32({3, 4})), joined = p.value(f32({6, 4})), left = p.value(f32({6, 2})),
                right = p.value(f32({6, 2}));
  p.op("aten::cat", {Arg::idList({in, in}), Arg::integer(0)}, {joined});
  p.op("aten::split_copy.Tensor", {Arg::id(joined), Arg::integer(2), Arg::integer(1)}).results = {{left, right}};
  p.emit(right);
  p.emit(left);
  Runner runner(p);
  for (int i = 0; i < 2; ++i) {
    const auto result = runner.step({x + i});
    EXPECT_TRUE(sameBits(result[0][0], at::cat({x + i, x + i}).narrow(1, 2, 2)));
    EXPECT_TRUE(sameBits(result[1][0], at::cat({x + i, x + i}).narrow(1, 0, 2)));
  }
}

TEST(Operator, OptionalTensorListsAndIndices) {
  const at::Tensor x = at::randn({4, 5}), rows = at::tensor({3, 0, 2}, at::kLong);
  Program p;
  const int32_t in = p.input(f32({4, 5})), index = p.input(typeOf(rows)), out = p.value(f32({4, 3}));
  Arg indices = Arg::idList({-1, index});
  indices.kind = Arg::Kind::kOptionalIdList;
  p.op("aten::index.Tensor", {Arg::id(in), indices}, {out});
  p.emit(out);
  Runner runner(p);
  // Indexing the second dimension: the kernel chooses the layout of its result; the slot is dense.
  EXPECT_TRUE(sameBits(runner.step({x, rows})[0][0], at::index(x, {std::nullopt, rows}).contiguous()));
}

TEST(Operator, ResultThatIsTheOperandItselfIsCopied) {
  const at::Tensor x = at::randn({4});
  Program p;
  const int32_t in = p.input(f32({4})), out = p.value(f32({4}));
  p.op("aten::alias", {Arg::id(in)}, {out});
  p.emit(out);
  Runner runner(p);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(sameBits(runner.step({x})[0][0], x));
}

TEST(Operator, SteadyStateAllocatesNothing) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({2, 3, 9, 9}), w = at::randn({4, 3, 3, 3});
  Program p;
  const int32_t in = p.input(f32({2, 3, 9, 9})), weight = p.external(f32({4, 3, 3, 3}), kParameter);
  const int32_t out = p.value(f32({2, 4, 9, 9})), positive = p.value(f32({2, 4, 9, 9})), total = p.value(f32({}));
  p.op("aten::convolution",
       {Arg::id(in), Arg::id(weight), Arg::none(), Arg::intList({1, 1}), Arg::intList({1, 1}), Arg::intList({1, 1}),
        Arg::boolean(false), Arg::intList({0, 0}), Arg::integer(1)},
       {out});
  p.op("aten::relu", {Arg::id(out)}, {positive});
  p.op("aten::sum", {Arg::id(positive), Arg::none()}, {total});
  p.emit(total);
  Runner runner(p);
  runner.backend().upload(0, w);
  for (int i = 0; i < 3; ++i) runner.step({x});
  const int64_t before = memory::cpuAllocatorMisses();
  for (int i = 0; i < 5; ++i) runner.step({x});
  EXPECT_EQ(memory::cpuAllocatorMisses(), before);
  EXPECT_GT(before, 0);
}

TEST(Operator, WorkspacesServeForSmallerOnes) {
  const auto missesOf = [](int64_t elements) {
    const int64_t before = memory::cpuAllocatorMisses();
    at::empty({elements}, at::kByte);
    return memory::cpuAllocatorMisses() - before;
  };
  const memory::CacheScope cache;
  memory::dropCache();
  EXPECT_EQ(missesOf(4 << 20), 1);
  EXPECT_EQ(missesOf(1 << 20), 0);
  EXPECT_EQ(missesOf(4 << 20), 0);  // the block is free again as a whole
  EXPECT_EQ(missesOf(1 << 19), 1);  // a small tensor does not take a large block from others
  memory::dropCache();
}

// ATen's kernel reads the missing statistics, and a signal ends eager PyTorch.
TEST(Operator, BatchNormWithoutStatisticsIsRefusedWhenLoaded) {
  Program p;
  const int32_t in = p.input(f32({8, 4})), out = p.value(f32({8, 4}));
  p.op("aten::native_batch_norm",
       {Arg::id(in), Arg::none(), Arg::none(), Arg::none(), Arg::none(), Arg::boolean(false), Arg::real(0.1),
        Arg::real(1e-5)},
       {out});
  try {
    Runner runner(p);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0501);
    EXPECT_NE(std::string(error.what()).find("running_mean"), std::string::npos) << error.what();
  }
}

// No instruction would wait for such a write, and the write could change an input of the caller.
TEST(Operator, WritesThatAreNotListedAreRefusedWhenLoaded) {
  const auto messageOf = [](const auto& change) -> std::string {
    Program p;
    const int32_t in = p.input(f32({2, 4})), a = p.value(f32({4})), b = p.value(f32({4})), out = p.value(f32({2, 4}));
    p.op("aten::add_.Tensor", {Arg::id(a), Arg::id(b), Arg::integer(1)}).writes = {a};
    p.op("aten::_foreach_add_.Scalar", {Arg::idList({a, b}), Arg::integer(1)}).writes = {a, b};
    p.op("aten::native_batch_norm",
         {Arg::id(in), Arg::none(), Arg::none(), Arg::id(a), Arg::id(b), Arg::boolean(true), Arg::real(0.1),
          Arg::real(1e-5)},
         {out})
        .writes = {a, b};
    p.emit(out);
    change(p.executable.segments[0].instructions);
    try {
      Runner runner(p);
      return "";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ErrorCode::E0501);
      return error.what();
    }
  };
  const auto says = [](const std::string& message, const char* part) {
    return message.find(part) != std::string::npos;
  };
  EXPECT_EQ(messageOf([](auto&) {}), "");
  EXPECT_TRUE(says(messageOf([](auto& list) { list[0].writes.clear(); }), "aten::add_.Tensor: writes argument self"));
  EXPECT_TRUE(says(messageOf([](auto& list) { list[0].writes = {list[0].writes[0] + 1}; }), "argument self"));
  EXPECT_TRUE(says(messageOf([](auto& list) { list[1].writes.pop_back(); }), "writes argument self"));
  EXPECT_TRUE(says(messageOf([](auto& list) { list[2].writes.pop_back(); }), "writes argument running_var"));
  // Statistics that are only read.
  EXPECT_EQ(messageOf([](auto& list) {
              list[2].args[5] = Arg::boolean(false);
              list[2].writes.clear();
            }),
            "");
}

TEST(Operator, UnknownOnesAreRefusedWhenLoaded) {
  Program p;
  p.op("aten::no_such_thing", {});
  try {
    Runner runner(p);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0106);
  }
}

}  // namespace
}  // namespace abele::device::testing
