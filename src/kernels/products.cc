#include "kernels/products.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/known_trials.h"
#include "kernels/parallel.h"

#ifdef ABELE_HAS_BLIS
#include <blis.h>
#endif

namespace abele::kernels {
namespace {

constexpr int kTimings = 4;           // for each way; the shortest counts, and the first prepares it
constexpr double kClearly = 0.95;     // share of ATen's time; smaller differences may be noise
constexpr int64_t kThreadRange = 64;  // rows or columns; fewer are not worth another thread

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

void multiply(const Product& whole, bool adds, BlisWay way) {
  const bool by_rows = whole.out.rows >= whole.out.columns;
  shareOut(by_rows ? whole.out.rows : whole.out.columns, kThreadRange, [&](int64_t begin, int64_t end) {
    auto [out, left, right] = whole;
    if (by_rows) {
      out.rows = left.rows = end - begin;
      out.data += begin * out.row_stride;
      left.data += begin * left.row_stride;
    } else {
      out.columns = right.columns = end - begin;
      out.data += begin * out.column_stride;
      right.data += begin * right.column_stride;
    }
    multiply(out, left, right, adds, way);
  });
}

int64_t leastNs(int64_t least, const c10::function_ref<void()>& product) {
  const auto start = std::chrono::steady_clock::now();
  product();
  return std::min<int64_t>(least, std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

// The way of BLIS that is clearly faster than ATen; nothing if none is.
std::optional<BlisWay> fasterWay(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  static auto& known = *new KnownTrials<std::vector<int64_t>, std::optional<BlisWay>>;
  std::vector<int64_t> key = {at::get_num_threads()};
  for (const at::Tensor* tensor : {&out, &left, &right})
    for (int64_t d = 0; d < 2; ++d) key.insert(key.end(), {tensor->size(d), tensor->stride(d)});
  return known.of(key, [&] {
    const at::Tensor scratch = at::empty_like(out);
    const Product product = *productOf(scratch, left, right);
    int64_t aten_ns = std::numeric_limits<int64_t>::max(), in_place_ns = aten_ns, packed_ns = aten_ns;
    for (int i = 0; i < kTimings; ++i) {
      aten_ns = leastNs(aten_ns, [&] { atenProduct(scratch, left, right, /*adds=*/false); });
      in_place_ns = leastNs(in_place_ns, [&] { multiply(product, /*adds=*/false, BlisWay::kInPlace); });
      packed_ns = leastNs(packed_ns, [&] { multiply(product, /*adds=*/false, BlisWay::kPacked); });
    }
    const bool is_faster =
        static_cast<double>(std::min(in_place_ns, packed_ns)) < kClearly * static_cast<double>(aten_ns);
    return is_faster ? std::optional(packed_ns < in_place_ns ? BlisWay::kPacked : BlisWay::kInPlace) : std::nullopt;
  });
}

}  // namespace

bool blisProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds, BlisWay way) {
  const std::optional<Product> product = productOf(out, left, right);
  if (product) multiply(*product, adds, way);
  return product.has_value();
}

void fastProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  const std::optional<Product> product = productOf(out, left, right);
  if (const auto way = product ? fasterWay(out, left, right) : std::nullopt)
    multiply(*product, adds, *way);
  else
    atenProduct(out, left, right, adds);
}

}  // namespace abele::kernels
