#include "kernels/products.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/basic.h"
#include "kernels/known_trials.h"
#include "kernels/parallel.h"
#include "kernels/scratch.h"

#ifdef ABELE_HAS_BLIS
#include <blis.h>
#endif

namespace abele::kernels {
namespace {

constexpr int kTimings = 4;                           // for each way; the shortest counts, and the first prepares it
constexpr int64_t kThreadRange = 64;                  // rows or columns; fewer are not worth another thread
constexpr int64_t kLongNs = 20'000'000;               // a product from here on is long for a trial
constexpr int64_t kLeastTerms = int64_t{1} << 20;     // if a product has fewer, calling it takes most of its time
constexpr int64_t kFewRows = 64;                      // up to here BLIS may be faster with operands where they are
constexpr int64_t kTrialElements = int64_t{1} << 18;  // elements of a result that a trial compares at a time
constexpr int64_t kLongestParts[] = {192, 384};       // see termsOfPart; with AVX2, and with AVX-512

// A matrix as BLIS takes it: it ends the process for strides that it does not know.
struct Matrix {
  float* data;
  int64_t rows, columns, row_stride, column_stride;
};

std::optional<Matrix> matrixOf(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.scalar_type() != at::kFloat || tensor.numel() == 0) return std::nullopt;
  // BLIS reads operands through pointers that are not const.
  Matrix m{const_cast<float*>(tensor.const_data_ptr<float>()), tensor.size(0), tensor.size(1), tensor.stride(0),
           tensor.stride(1)};
  if (m.rows == 1) m.row_stride = m.column_stride == 1 ? m.columns : 1;
  if (m.columns == 1) m.column_stride = m.row_stride == 1 ? m.rows : 1;
  const bool has_dense_rows = m.column_stride == 1 && m.row_stride >= m.columns;
  const bool has_dense_columns = m.row_stride == 1 && m.column_stride >= m.rows;
  return has_dense_rows || has_dense_columns ? std::optional(m) : std::nullopt;
}

#ifdef ABELE_HAS_BLIS
constexpr bool kHasBlis = true;

void multiply(const Matrix& out, const Matrix& left, const Matrix& right, bool adds, BlisWay way) {
  float one = 1, beta = adds ? 1 : 0;
  rntm_t settings;
  bli_rntm_init_from_global(&settings);
  bli_rntm_set_l3_sup(way == BlisWay::kInPlace, &settings);
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, out.rows, out.columns, left.columns, &one, left.data,
               left.row_stride, left.column_stride, right.data, right.row_stride, right.column_stride, &beta, out.data,
               out.row_stride, out.column_stride, nullptr, &settings);
}
#else
constexpr bool kHasBlis = false;

void multiply(const Matrix&, const Matrix&, const Matrix&, bool, BlisWay) {}
#endif

void atenProduct(at::Tensor out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  if (!adds)
    at::cpu::mm_out(out, left, right);
  else
    at::cpu::addmm_out(out, out, left, right, 1, 1);
}

// The matrices of a product, if BLIS can compute it.
struct Product {
  Matrix out, left, right;
};

std::optional<Product> productOf(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  if (!kHasBlis) return std::nullopt;
  const std::optional<Matrix> to = matrixOf(out), a = matrixOf(left), b = matrixOf(right);
  return to && a && b ? std::optional(Product{*to, *a, *b}) : std::nullopt;
}

// How BLIS computes a product: some terms of each element at a time, with the bits of ATen's sums or not.
struct Plan {
  BlisWay way;
  int64_t terms;
  bool is_exact;
};

void fillZero(const Matrix& m) {
  const bool has_dense_rows = m.column_stride == 1;
  const int64_t lines = has_dense_rows ? m.rows : m.columns, length = has_dense_rows ? m.columns : m.rows;
  for (int64_t i = 0; i < lines; ++i)
    std::fill_n(m.data + i * (has_dense_rows ? m.row_stride : m.column_stride), length, 0.0F);
}

void multiplyInParts(const Product& whole, bool adds, const Plan& plan) {
  // ATen adds the first sum to 0, so that -0 becomes +0.
  if (plan.is_exact && !adds) {
    fillZero(whole.out);
    adds = true;
  }
  const int64_t terms = whole.left.columns, step = std::min(plan.terms, terms);
  for (int64_t begin = 0; begin < terms; begin += step) {
    auto [out, left, right] = whole;
    left.columns = right.rows = std::min(step, terms - begin);
    left.data += begin * left.column_stride;
    right.data += begin * right.row_stride;
    multiply(out, left, right, adds || begin > 0, plan.way);
  }
}

void multiply(const Product& whole, bool adds, const Plan& plan) {
  const bool by_rows = whole.out.rows >= whole.out.columns;
  shareOut(by_rows ? whole.out.rows : whole.out.columns, kThreadRange, [&](int64_t begin, int64_t end) {
    Product part = whole;
    if (by_rows) {
      part.out.rows = part.left.rows = end - begin;
      part.out.data += begin * part.out.row_stride;
      part.left.data += begin * part.left.row_stride;
    } else {
      part.out.columns = part.right.columns = end - begin;
      part.out.data += begin * part.out.column_stride;
      part.right.data += begin * part.right.column_stride;
    }
    multiplyInParts(part, adds, plan);
  });
}

// The way of BLIS that is clearly faster than ATen; nothing if none is.
std::optional<Plan> fasterPlan(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  static auto& known = *new KnownTrials<std::vector<int64_t>, std::optional<Plan>>;
  std::vector<int64_t> key = {at::get_num_threads()};
  for (const at::Tensor* tensor : {&out, &left, &right})
    for (int64_t d = 0; d < 2; ++d) key.insert(key.end(), {tensor->size(d), tensor->stride(d)});
  return known.of(key, [&] {
    const at::Tensor scratch = at::empty_like(out);
    const Product product = *productOf(scratch, left, right);
    const Plan in_place{BlisWay::kInPlace, left.size(1), /*is_exact=*/false},
        packed{BlisWay::kPacked, left.size(1), /*is_exact=*/false};
    int64_t aten_ns = std::numeric_limits<int64_t>::max(), in_place_ns = aten_ns, packed_ns = aten_ns;
    for (int i = 0; i < kTimings; ++i) {
      aten_ns = leastNs(aten_ns, [&] { atenProduct(scratch, left, right, /*adds=*/false); });
      in_place_ns = leastNs(in_place_ns, [&] { multiply(product, /*adds=*/false, in_place); });
      packed_ns = leastNs(packed_ns, [&] { multiply(product, /*adds=*/false, packed); });
    }
    if (!isClearlyLess(std::min(in_place_ns, packed_ns), aten_ns)) return std::optional<Plan>();
    return std::optional(packed_ns < in_place_ns ? packed : in_place);
  });
}

// Compares ATen and BLIS on random numbers, in operands of the same layouts, which share one memory. ATen writes to
// `out`, and BLIS to a few rows or columns at a time, so that the trial needs little memory of its own. They are cut
// off the longer side: for each part BLIS packs the operand of the other side again.
class ExactTrial {
 public:
  ExactTrial(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds)
      : out_(out),
        side_(out.size(0) >= out.size(1) ? 0 : 1),
        lines_(std::clamp<int64_t>(kTrialElements / out.size(1 - side_), 1, out.size(side_))),
        adds_(adds),
        operands_(std::max(extentOf(left), extentOf(right)), left.options()),
        term_(lines_ * out.size(1 - side_), out.options()),
        found_(lines_ * out.size(1 - side_), out.options()),
        left_(operands_.like(left)),
        right_(operands_.like(right)) {}

  /// The fastest way with ATen's bits; nothing if that is ATen's own.
  std::optional<Plan> best() {
    std::vector<BlisWay> ways = {BlisWay::kPacked};
    if (std::min(out_.size(0), out_.size(1)) <= kFewRows) ways.push_back(BlisWay::kInPlace);
    std::optional<Plan> best;
    int64_t best_ns = std::numeric_limits<int64_t>::max();
    for (const int64_t longest : kLongestParts) {
      bool has_bits = false;
      for (const BlisWay way : ways) {
        const Plan plan{way, termsOfPart(left_.size(1), longest), /*is_exact=*/true};
        const std::optional<Times> took = times(plan);
        has_bits = has_bits || took;
        if (took && isClearlyLess(took->blis_ns, took->aten_ns) && took->blis_ns < best_ns)
          best = plan, best_ns = took->blis_ns;
      }
      if (has_bits) break;
    }
    return best;
  }

 private:
  struct Times {
    int64_t aten_ns = std::numeric_limits<int64_t>::max(), blis_ns = aten_ns;
  };

  // Calls fn(first row or column, number of them) for parts of the result.
  template <class Fn>
  void forEachPart(const Fn& fn) const {
    for (int64_t line = 0; line < out_.size(side_); line += lines_) fn(line, std::min(lines_, out_.size(side_) - line));
  }
  at::Tensor partOf(const ScratchMemory& memory, int64_t lines) const {
    return side_ == 0 ? memory.rows(lines, out_.size(1)) : memory.rows(out_.size(0), lines);
  }

  bool hasBits(const Plan& plan) {
    bool is_same = true;
    forEachPart([&](int64_t line, int64_t lines) {
      if (!is_same) return;
      const at::Tensor found = partOf(found_, lines);
      if (adds_) found.copy_(partOf(term_, lines));
      multiply(*productOf(found, side_ == 0 ? left_.narrow(0, line, lines) : left_,
                          side_ == 1 ? right_.narrow(1, line, lines) : right_),
               adds_, plan);
      is_same = at::equal(found, out_.narrow(side_, line, lines));
    });
    return is_same;
  }

  // Nothing if the bits differ. A long product is computed once.
  std::optional<Times> times(const Plan& plan) {
    Times least;
    const auto by_aten = [&] { atenProduct(out_, left_, right_, adds_); };
    const auto by_blis = [&] { multiply(*productOf(out_, left_, right_), adds_, plan); };
    const int64_t rounds = trialRounds(out_.numel(), left_.numel() + right_.numel(), /*least=*/1);
    for (int64_t i = 0; i < rounds; ++i) {
      operands_.fill(generator_);
      if (adds_) {
        term_.fill(generator_);
        forEachPart([&](int64_t line, int64_t lines) { out_.narrow(side_, line, lines).copy_(partOf(term_, lines)); });
      }
      least.aten_ns = leastNs(least.aten_ns, by_aten);
      if (!hasBits(plan)) return std::nullopt;
      least.blis_ns = leastNs(least.blis_ns, by_blis);
    }
    for (int i = 0; i < kTimings && least.aten_ns < kLongNs; ++i) {
      least.aten_ns = leastNs(least.aten_ns, by_aten);
      least.blis_ns = leastNs(least.blis_ns, by_blis);
    }
    return least;
  }

  at::Tensor out_;
  int64_t side_;   // along which the result is cut into parts: 0, its rows, or 1, its columns
  int64_t lines_;  // rows or columns of a part
  bool adds_;
  at::Generator generator_ = at::detail::createCPUGenerator(/*seed_val=*/20261130);
  ScratchMemory operands_, term_, found_;
  at::Tensor left_, right_;
};

using ExactPlans = KnownTrials<std::vector<int64_t>, std::optional<Plan>>;

ExactPlans& exactPlans() {
  static auto& known = *new ExactPlans;
  return known;
}

std::vector<int64_t> layoutOf(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  std::vector<int64_t> key = {at::get_num_threads(), adds};
  for (const at::Tensor* tensor : {&out, &left, &right}) addLayout(*tensor, key);
  return key;
}

// The matrices of a product that BLIS may compute with ATen's bits.
std::optional<Product> exactProductOf(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  const bool is_large = out.numel() * left.size(1) >= kLeastTerms && out.is_contiguous();
  return is_large ? productOf(out, left, right) : std::nullopt;
}

}  // namespace

bool blisProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds, BlisWay way,
                 int64_t terms) {
  const std::optional<Product> product = productOf(out, left, right);
  if (product) multiply(*product, adds, {way, terms, /*is_exact=*/false});
  return product.has_value();
}

int64_t termsOfPart(int64_t terms, int64_t longest) {
  if (terms <= longest) return terms;
  return terms <= 2 * longest ? terms / 2 : longest;
}

void exactProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, const at::Tensor* term) {
  const bool adds = term != nullptr;
  std::optional<Plan> plan;
  const std::optional<Product> product = exactProductOf(out, left, right);
  if (product)
    plan = exactPlans().of(layoutOf(out, left, right, adds), [&] { return ExactTrial(out, left, right, adds).best(); });
  if (adds) copyInto(out, term->expand_as(out));
  if (plan)
    multiply(*product, adds, *plan);
  else
    atenProduct(out, left, right, adds);
}

void addExactProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  const std::optional<Product> product = exactProductOf(sum, left, right);
  const auto known = product ? exactPlans().find(layoutOf(sum, left, right, /*adds=*/false)) : std::nullopt;
  // ATen's call has the bits of an addition afterwards only if the product is one part.
  if (known && *known && (*known)->terms == left.size(1))
    multiply(*product, /*adds=*/true, **known);
  else
    atenProduct(sum, left, right, /*adds=*/true);
}

void fastProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  const std::optional<Product> product = productOf(out, left, right);
  if (const auto plan = product ? fasterPlan(out, left, right) : std::nullopt)
    multiply(*product, adds, *plan);
  else
    atenProduct(out, left, right, adds);
}

}  // namespace abele::kernels
