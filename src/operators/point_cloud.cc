// Farthest point sampling and nearest neighbours.
#include <cmath>
#include <limits>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "abele/ops.h"
#include "base/error.h"
#include "operators/library.h"

namespace abele {
namespace {

using FpsSignature = at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef);
using NearestSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&);

double squaredDistance(const double* a_F, const double* b_F, int64_t num_features) {
  double sum = 0;
  for (int64_t f = 0; f < num_features; ++f) sum += (a_F[f] - b_F[f]) * (a_F[f] - b_F[f]);
  return sum;
}

}  // namespace

namespace operators {

at::Tensor fpsKernel(const at::Tensor& src_PF, const at::Tensor& starts_B, at::IntArrayRef ptr, at::IntArrayRef picks) {
  const at::Tensor points = src_PF.to(at::kDouble).contiguous();
  const double* point = points.const_data_ptr<double>();
  const int64_t num_features = points.size(0) == 0 ? 0 : points.numel() / points.size(0);
  const at::Tensor starts = starts_B.to(at::kLong).contiguous();
  std::vector<int32_t> chosen;
  for (size_t b = 0; b + 1 < ptr.size(); ++b) {
    const int64_t begin = ptr[b];
    std::vector<double> distance(ptr[b + 1] - begin, std::numeric_limits<double>::infinity());
    int64_t next = starts.const_data_ptr<int64_t>()[b];
    for (int64_t pick = 0; pick < picks[b]; ++pick) {
      chosen.push_back(static_cast<int32_t>(begin + next));
      const double* last = point + (begin + next) * num_features;
      int64_t farthest = 0;
      for (int64_t p = 0; p < static_cast<int64_t>(distance.size()); ++p) {
        distance[p] = std::min(distance[p], squaredDistance(point + (begin + p) * num_features, last, num_features));
        if (distance[p] > distance[farthest]) farthest = p;
      }
      next = farthest;
    }
  }
  at::Tensor result = at::empty({static_cast<int64_t>(chosen.size())}, at::kInt);
  std::copy(chosen.begin(), chosen.end(), result.mutable_data_ptr<int32_t>());
  return result;
}

at::Tensor nearestKernel(const at::Tensor& x_NF, const at::Tensor& y_MF, const at::Tensor& batch_x_N,
                         const at::Tensor& batch_y_M) {
  const at::Tensor x = x_NF.to(at::kDouble).contiguous(), y = y_MF.to(at::kDouble).contiguous();
  const at::Tensor batch_x = batch_x_N.to(at::kLong).contiguous(), batch_y = batch_y_M.to(at::kLong).contiguous();
  const int64_t num_features = x.size(1);
  at::Tensor result = at::zeros({x.size(0)}, at::kInt);
  for (int64_t n = 0; n < x.size(0); ++n) {
    double best = std::numeric_limits<double>::infinity();
    for (int64_t m = 0; m < y.size(0); ++m) {
      if (batch_y.const_data_ptr<int64_t>()[m] != batch_x.const_data_ptr<int64_t>()[n]) continue;
      const double distance = squaredDistance(x.const_data_ptr<double>() + n * num_features,
                                              y.const_data_ptr<double>() + m * num_features, num_features);
      if (distance >= best) continue;
      best = distance;
      result.mutable_data_ptr<int32_t>()[n] = static_cast<int32_t>(m);
    }
  }
  return result;
}

}  // namespace operators

namespace ops {
namespace {

at::Tensor asRows(const at::Tensor& tensor, const char* name) {
  ABELE_REQUIRE(tensor.dim() == 1 || tensor.dim() == 2, E0708,
                {.what = cat("nearest: ", name, " has rank ", tensor.dim()), .expected = "1 or 2"});
  return tensor.dim() == 1 ? tensor.detach().unsqueeze(1) : tensor.detach();
}

at::Tensor batchOf(const at::Tensor& batch, int64_t num_rows, const char* name) {
  if (!batch.defined()) return at::zeros({num_rows}, at::kLong);
  ABELE_REQUIRE(batch.dim() == 1 && batch.size(0) == num_rows, E0708,
                {.what = cat("nearest: ", name, " has ", batch.numel(), " entries"),
                 .expected = cat("one for each of the ", num_rows, " rows")});
  return batch;
}

}  // namespace

at::Tensor fps(const at::Tensor& src, const std::vector<int64_t>& ptr, double ratio, bool random_start) {
  ABELE_REQUIRE(src.dim() >= 1, E0708, {.what = "fps of a scalar", .expected = "one row per point"});
  ABELE_REQUIRE(
      ptr.size() >= 2, E0708,
      {.what = cat("fps: ptr has ", ptr.size(), " entries"), .expected = "the boundaries of a batch or more"});
  ABELE_REQUIRE(ratio > 0 && ratio <= 1, E0708, {.what = cat("fps: ratio is ", ratio), .expected = "0 < ratio <= 1"});
  std::vector<int64_t> picks;
  std::vector<at::Tensor> starts;
  for (size_t b = 0; b + 1 < ptr.size(); ++b) {
    const int64_t count = ptr[b + 1] - ptr[b];
    ABELE_REQUIRE(ptr[b] >= 0 && count >= 0 && ptr[b + 1] <= src.size(0), E0708,
                  {.what = cat("fps: batch ", b, " is rows ", ptr[b], "..", ptr[b + 1], " of ", src.size(0))});
    picks.push_back(static_cast<int64_t>(std::ceil(static_cast<double>(count) * ratio)));
    starts.push_back(random_start && count > 0 ? at::randint(count, {1}, at::kLong) : at::zeros({1}, at::kLong));
  }
  return operators::operatorOf<FpsSignature>("abele_op::fps").call(src.detach(), at::cat(starts), ptr, picks);
}

at::Tensor nearest(const at::Tensor& x, const at::Tensor& y) { return nearest(x, y, {}, {}); }

at::Tensor nearest(const at::Tensor& x, const at::Tensor& y, const at::Tensor& batch_x, const at::Tensor& batch_y) {
  const at::Tensor x_NF = asRows(x, "x"), y_MF = asRows(y, "y");
  ABELE_REQUIRE(x_NF.size(1) == y_MF.size(1), E0708,
                {.what = cat("nearest: x has ", x_NF.size(1), " features, y has ", y_MF.size(1))});
  return operators::operatorOf<NearestSignature>("abele_op::nearest")
      .call(x_NF, y_MF, batchOf(batch_x, x_NF.size(0), "batch_x"), batchOf(batch_y, y_MF.size(0), "batch_y"));
}

}  // namespace ops
}  // namespace abele
