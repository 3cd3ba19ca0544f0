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

constexpr int kTimings = 4;           // per library; the shortest counts, and the first prepares it
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

void multiply(const Matrix& out, const Matrix& left, const Matrix& right, bool adds) {
  float one = 1, beta = adds ? 1 : 0;
  bli_sgemm(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, out.rows, out.columns, left.columns, &one, left.data, left.row_stride,
            left.column_stride, right.data, right.row_stride, right.column_stride, &beta, out.data, out.row_stride,
            out.column_stride);
}
#else
constexpr bool kHasBlis = false;

void multiply(const Matrix&, const Matrix&, const Matrix&, bool) {}
#endif

void atenProduct(at::Tensor out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  if (!adds)
    at::cpu::mm_out(out, left, right);
  else
    at::cpu::addmm_out(out, out, left, right, 1, 1);
}

int64_t leastNs(int64_t least, const c10::function_ref<void()>& product) {
  const auto start = std::chrono::steady_clock::now();
  product();
  return std::min<int64_t>(least, std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

bool isBlisFaster(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  static auto& known = *new KnownTrials<std::vector<int64_t>, bool>;
  std::vector<int64_t> key = {at::get_num_threads()};
  for (const at::Tensor* tensor : {&out, &left, &right})
    for (int64_t d = 0; d < 2; ++d) key.insert(key.end(), {tensor->size(d), tensor->stride(d)});
  return known.of(key, [&] {
    const at::Tensor scratch = at::empty_like(out);
    int64_t aten_ns = std::numeric_limits<int64_t>::max(), blis_ns = aten_ns;
    for (int i = 0; i < kTimings; ++i) {
      aten_ns = leastNs(aten_ns, [&] { atenProduct(scratch, left, right, /*adds=*/false); });
      blis_ns = leastNs(blis_ns, [&] { blisProduct(scratch, left, right, /*adds=*/false); });
    }
    return static_cast<double>(blis_ns) < kClearly * static_cast<double>(aten_ns);
  });
}

}  // namespace

bool blisProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  const std::optional<Matrix> to = matrixOf(out), a = matrixOf(left), b = matrixOf(right);
  if (!kHasBlis || !to || !a || !b) return false;
  const bool by_rows = to->rows >= to->columns;
  shareOut(by_rows ? to->rows : to->columns, kThreadRange, [&](int64_t begin, int64_t end) {
    Matrix part = *to, rows = *a, columns = *b;
    if (by_rows) {
      part.rows = rows.rows = end - begin;
      part.data += begin * part.row_stride;
      rows.data += begin * rows.row_stride;
    } else {
      part.columns = columns.columns = end - begin;
      part.data += begin * part.column_stride;
      columns.data += begin * columns.column_stride;
    }
    multiply(part, rows, columns, adds);
  });
  return true;
}

void fastProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  const bool may_be_faster = kHasBlis && matrixOf(out) && matrixOf(left) && matrixOf(right);
  if (!may_be_faster || !isBlisFaster(out, left, right) || !blisProduct(out, left, right, adds))
    atenProduct(out, left, right, adds);
}

}  // namespace abele::kernels
