// Operators that add their gradient to the sum give the bits of an operator and an addition, on every device.
#include <random>
#include <utility>

#include <ATen/Parallel.h>

#include "conformance.h"

namespace abele::device::testing {
namespace {

using exe::ExternalKind;

constexpr int64_t kMicroBatches = 3;

struct GradientSums : Conformance {
  void SetUp() override {
    Conformance::SetUp();
    if (!GetParam().computes) GTEST_SKIP() << "compares numbers";
  }
};

Type typed(DType dtype, std::vector<int64_t> sizes) { return contiguousType(dtype, std::move(sizes)); }
Type transposed(Type type) {
  std::swap(type.sizes[0], type.sizes[1]);
  std::swap(type.strides[0], type.strides[1]);
  return type;
}

// Numbers for sums: zeros of both signs, infinities, NaN and numbers close to zero.
at::Tensor numbers(std::vector<int64_t> sizes, DType dtype, bool odd) {
  at::Tensor tensor = at::randn(sizes, static_cast<at::ScalarType>(dtype));
  if (!odd) return tensor;
  const double some[] = {0.0, -0.0, 1e-40, -1e-40, INFINITY, -INFINITY, NAN, 3e38};
  at::Tensor flat = tensor.view({-1});
  for (int64_t i = 0; i < flat.numel(); i += 3) flat[i] = some[static_cast<size_t>(i / 3) % std::size(some)];
  return tensor;
}

// Equal numbers, NaN at the same places, and zeros of the same sign.
bool sameNumbers(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor nan = a.isnan();
  return at::equal(nan, b.isnan()) && at::equal(at::nan_to_num(a), at::nan_to_num(b)) &&
         at::equal(a.signbit().logical_and(nan.logical_not()), b.signbit().logical_and(nan.logical_not())) &&
         at::equal(a.isinf(), b.isinf());
}

class Product {
 public:
  Product(int64_t m, int64_t k, int64_t n, DType dtype) : m_(m), k_(k), n_(n), dtype_(dtype) {}
  bool left_transposed = false, right_transposed = false, sum_transposed = false;

  /// reorders: joined, in any order of addition that the library chooses.
  Program program(bool joined, bool reorders = false) const {
    Program p(kMicroBatches);
    const int32_t left = p.input(left_transposed ? transposed(typed(dtype_, {k_, m_})) : typed(dtype_, {m_, k_}));
    const int32_t right = p.input(right_transposed ? transposed(typed(dtype_, {n_, k_})) : typed(dtype_, {k_, n_}));
    const Type type = typed(dtype_, {m_, n_});
    const int32_t sum =
        p.external(sum_transposed ? transposed(typed(dtype_, {n_, m_})) : type, ExternalKind::kAccumulator);
    if (joined) {
      std::vector<Arg> args = {Arg::id(sum), Arg::id(left), Arg::id(right)};
      if (reorders) args.push_back(Arg::boolean(true));
      p.op("abele::accumulate_product", std::move(args)).writes = {sum};
    } else {
      const int32_t made = p.value(type);
      p.op("aten::mm", {Arg::id(left), Arg::id(right)}, {made});
      p.op("abele::accumulate", {Arg::id(sum), Arg::id(made)}).writes = {sum};
    }
    return p;
  }
  // Rows of all micro-batches, each laid out as the program's input.
  std::vector<at::Tensor> batch(bool odd) const {
    return {part(kMicroBatches * m_, k_, left_transposed, odd), part(kMicroBatches * k_, n_, right_transposed, odd)};
  }

 private:
  at::Tensor part(int64_t rows, int64_t columns, bool is_transposed, bool odd) const {
    return is_transposed ? numbers({columns, rows}, dtype_, odd).t() : numbers({rows, columns}, dtype_, odd);
  }
  int64_t m_, k_, n_;
  DType dtype_;
};

TEST_P(GradientSums, ProductsGiveTheBitsOfAProductAndAnAdd) {
  std::mt19937 random(5);
  const auto upTo = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1; };
  const auto flip = [&] { return random() % 2 == 0; };
  for (int i = 0; i < 60; ++i) {
    const int64_t m = upTo(90), k = i % 3 == 0 ? upTo(1100) : upTo(40), n = upTo(90);
    Product product(m, k, n, i % 5 == 0 ? DType::kFloat64 : DType::kFloat32);
    product.left_transposed = flip(), product.right_transposed = flip(), product.sum_transposed = i % 7 == 0;
    SCOPED_TRACE(::testing::Message() << m << " x " << k << " x " << n << ", case " << i);
    const Program joined = product.program(true), apart = product.program(false);
    expectVerified(joined);
    Runner one(joined), two(apart);
    for (int step = 0; step < 2; ++step) {
      const std::vector<at::Tensor> batch = product.batch(/*odd=*/step == 1 && i % 4 == 0);
      one.step(batch), two.step(batch);
      ASSERT_TRUE(sameNumbers(one.backend().value(0), two.backend().value(0)));
    }
  }
}

// Products of several pieces (the last one has fewer rows); long rows are added up in parts.
TEST_P(GradientSums, LargeProductsGiveTheBitsOfAProductAndAnAdd) {
  for (const int64_t k : {4, 700})
    for (const bool left_transposed : {false, true}) {
      Product product(/*m=*/611, k, /*n=*/480, DType::kFloat32);
      product.left_transposed = left_transposed;
      SCOPED_TRACE(::testing::Message() << "rows of " << k << (left_transposed ? ", transposed" : ""));
      const Program joined = product.program(true), apart = product.program(false);
      Runner one(joined), two(apart);
      const std::vector<at::Tensor> batch = product.batch(/*odd=*/false);
      one.step(batch), two.step(batch);
      ASSERT_TRUE(sameNumbers(one.backend().value(0), two.backend().value(0)));
    }
}

// Requires: every element of the sum is within (n k + n) u of the sum of its terms' sizes, of the real sum.
void expectWithinBound(const at::Tensor& sum, const std::vector<at::Tensor>& batch, double unit) {
  at::Tensor expected = at::zeros(sum.sizes(), at::kDouble), sizes = at::zeros(sum.sizes(), at::kDouble);
  int64_t terms = 0;
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    const at::Tensor left = batch[0].chunk(kMicroBatches)[i].to(at::kDouble);
    const at::Tensor right = batch[1].chunk(kMicroBatches)[i].to(at::kDouble);
    expected += left.mm(right);
    sizes += left.abs().mm(right.abs());
    terms += left.size(1) + 1;
  }
  const at::Tensor wrong = (sum.to(at::kDouble) - expected).abs() > static_cast<double>(terms) * unit * sizes;
  EXPECT_FALSE(wrong.any().item<bool>());
}

TEST_P(GradientSums, ReorderedProductsStayWithinTheirBound) {
  std::mt19937 random(9);
  const auto upTo = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1; };
  const auto flip = [&] { return random() % 2 == 0; };
  for (int i = 0; i < 40; ++i) {
    const int64_t m = upTo(90), k = i % 3 == 0 ? upTo(1100) : upTo(40), n = upTo(90);
    const DType dtype = i % 5 == 0 ? DType::kFloat64 : i % 5 == 1 ? DType::kBFloat16 : DType::kFloat32;
    const double unit = dtype == DType::kFloat64 ? 0x1p-53 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24;
    Product product(m, k, n, dtype);
    product.left_transposed = flip(), product.right_transposed = flip(), product.sum_transposed = i % 7 == 0;
    SCOPED_TRACE(::testing::Message() << m << " x " << k << " x " << n << ", case " << i);
    const Program program = product.program(/*joined=*/true, /*reorders=*/true);
    expectVerified(program);
    Runner runner(program);
    for (int step = 0; step < 2; ++step) {
      const std::vector<at::Tensor> batch = product.batch(/*odd=*/false);
      runner.step(batch);
      expectWithinBound(runner.backend().value(0), batch, unit);
    }
  }
}

class Rows {
 public:
  Rows(int64_t rows, int64_t width, int64_t named, DType indices)
      : rows_(rows), width_(width), named_(named), indices_(indices) {}
  int64_t padding = -1;

  Program program(bool joined) const {
    Program p(kMicroBatches);
    const int32_t gradient = p.input(f32({named_, width_})), indices = p.input(typed(indices_, {named_}));
    const int32_t sum = p.external(f32({rows_, width_}), ExternalKind::kAccumulator);
    if (joined) {
      p.op("abele::accumulate_rows", {Arg::id(sum), Arg::id(gradient), Arg::id(indices), Arg::integer(padding)})
          .writes = {sum};
    } else {
      const int32_t made = p.value(f32({rows_, width_}));
      p.op("aten::embedding_dense_backward",
           {Arg::id(gradient), Arg::id(indices), Arg::integer(rows_), Arg::integer(padding), Arg::boolean(false)},
           {made});
      p.op("abele::accumulate", {Arg::id(sum), Arg::id(made)}).writes = {sum};
    }
    return p;
  }
  std::vector<at::Tensor> batch(bool odd) const {
    return {numbers({kMicroBatches * named_, width_}, DType::kFloat32, odd),
            at::randint(rows_, {kMicroBatches * named_}, static_cast<at::ScalarType>(indices_))};
  }

 private:
  int64_t rows_, width_, named_;
  DType indices_;
};

TEST_P(GradientSums, RowsGiveTheBitsOfAnEmbeddingsGradientAndAnAdd) {
  std::mt19937 random(7);
  const auto upTo = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1; };
  for (int i = 0; i < 30; ++i) {
    const int64_t rows = upTo(50), width = upTo(40), named = i % 10 == 0 ? 1500 : upTo(30);
    Rows of(rows, width, named, i % 3 == 0 ? DType::kInt32 : DType::kInt64);
    if (i % 2 == 0) of.padding = rows / 2;
    SCOPED_TRACE(::testing::Message() << named << " of " << rows << " rows of " << width << ", case " << i);
    const Program joined = of.program(true), apart = of.program(false);
    expectVerified(joined);
    Runner one(joined), two(apart);
    for (int step = 0; step < 3; ++step) {
      const std::vector<at::Tensor> batch = of.batch(/*odd=*/step == 2);
      one.step(batch), two.step(batch);
      ASSERT_TRUE(sameNumbers(one.backend().value(0), two.backend().value(0)));
    }
  }
}

// Rows outside of the table are left out, as eager's kernel does.
TEST_P(GradientSums, RowsThatTheSumLacksAreLeftOut) {
  const Rows of(4, 3, 5, DType::kInt64);
  const Program joined = of.program(true);
  Runner one(joined);
  std::vector<at::Tensor> batch = of.batch(false);
  batch[1].fill_(7), batch[1][0] = -3, batch[1][1] = 2;
  one.step(batch);
  const at::Tensor sum = one.backend().value(0);
  EXPECT_TRUE(at::equal(sum[2], batch[0][1]));
  EXPECT_TRUE(at::equal(sum[0], at::zeros({3})));
}

INSTANTIATE_TEST_SUITE_P(Devices, GradientSums, ::testing::ValuesIn(allBackends()), nameOf);

}  // namespace
}  // namespace abele::device::testing
