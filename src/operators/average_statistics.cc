// Running statistics of batch normalisation as plain averages over all batches. Their weight is a value of the device;
// ATen's own operators take numbers for it.
#include <ATen/ops/batch_norm_update_stats.h>

#include "operators/library.h"

namespace abele::operators {

void averageStatisticsKernel(const at::Tensor& x, at::Tensor mean, at::Tensor var, const at::Tensor& num_batches) {
  const auto count = static_cast<double>(num_batches.const_data_ptr<int64_t>()[0]);
  // Torch refuses statistics that are narrower than x.
  const auto widened = [&](const at::Tensor& statistics) {
    return statistics.to(c10::promoteTypes(statistics.scalar_type(), x.scalar_type()));
  };
  const at::Tensor wide_mean = widened(mean), wide_var = widened(var);
  at::batch_norm_update_stats(x, wide_mean, wide_var, 1.0 / count);
  if (!wide_mean.is_same(mean)) mean.copy_(wide_mean);
  if (!wide_var.is_same(var)) var.copy_(wide_var);
}

}  // namespace abele::operators
