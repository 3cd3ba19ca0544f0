// torch.matmul in pieces. Autograd differentiates the pieces, so backward runs in pieces too.
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/narrow.h>

#include "abele/ops.h"
#include "base/error.h"

namespace abele::ops {

at::Tensor serializedMatMul(const at::Tensor& lhs, const at::Tensor& rhs, MatMulSerializationMode mode, int64_t factor,
                            bool keep_precision) {
  if (mode == MatMulSerializationMode::kDisabled) return at::matmul(lhs, rhs);
  ABELE_REQUIRE(lhs.dim() >= 2 && rhs.dim() >= 2, E0708,
                {.what = "a serialized matmul of vectors",
                 .found = cat("ranks ", lhs.dim(), " and ", rhs.dim()),
                 .expected = "matrices"});
  const int64_t rows = lhs.size(-2), shared = lhs.size(-1), columns = rhs.size(-1);
  const int64_t length = mode == MatMulSerializationMode::kInputChannels ? rows
                         : mode == MatMulSerializationMode::kReducingDim ? shared
                                                                         : columns;
  ABELE_REQUIRE(factor > 0 && length % factor == 0, E0708,
                {.what = cat("a matmul in ", factor, " pieces along a dimension of ", length),
                 .expected = "a factor that divides it"});
  const int64_t size = length / factor;
  std::vector<at::Tensor> parts;
  at::Tensor sum;
  for (int64_t i = 0; i < factor; ++i) {
    const int64_t at = i * size;
    switch (mode) {
      case MatMulSerializationMode::kInputChannels: parts.push_back(at::matmul(lhs.narrow(-2, at, size), rhs)); break;
      case MatMulSerializationMode::kOutputChannels: parts.push_back(at::matmul(lhs, rhs.narrow(-1, at, size))); break;
      default: {
        at::Tensor part = at::matmul(lhs.narrow(-1, at, size), rhs.narrow(-2, at, size));
        if (keep_precision && part.scalar_type() == at::kHalf) part = part.to(at::kFloat);
        sum = sum.defined() ? at::add(sum, part) : part;
      }
    }
  }
  if (mode == MatMulSerializationMode::kInputChannels) return at::cat(parts, -2);
  if (mode == MatMulSerializationMode::kOutputChannels) return at::cat(parts, -1);
  return sum.to(lhs.scalar_type());
}

}  // namespace abele::ops
