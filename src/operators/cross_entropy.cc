// The cross entropy of rows of logits in one piece of memory. Log-probabilities overwrite the logits, and their
// gradient overwrites the log-probabilities. ATen's kernels do the work, so every bit equals ATen's. Legend: N rows, C
// classes.
#include <algorithm>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_backward_cpu_dispatch.h>

#include "kernels/parallel.h"
#include "operators/library.h"

namespace abele::operators {
namespace {

// Bytes of one tensor's rows in a tile: a few such tensors fit into a second-level cache. ATen's kernels give a row the
// same bits in every tile.
constexpr int64_t kTileBytes = int64_t{1} << 17;

// The rows from begin to begin + count of a tensor on the CPU, made without the dispatcher.
at::Tensor rowsOf(const at::Tensor& tensor, int64_t begin, int64_t count) {
  at::DimVector sizes(tensor.sizes());
  sizes[0] = count;
  return at::cpu::as_strided(tensor, sizes, tensor.strides(), tensor.storage_offset() + begin * tensor.stride(0));
}

}  // namespace

// In place is safe: a kernel over the last dimension has read a whole row before it writes the row.
void logSoftmaxOnCpu(at::Tensor x, int64_t dim) { at::cpu::_log_softmax_out(x, x, dim, /*half_to_float=*/false); }

void logSoftmaxKernel(at::Tensor x, int64_t dim) { x.copy_(at::_log_softmax(x, dim, /*half_to_float=*/false)); }

// Works on tiles of rows. The gradient of the log-probabilities is zero except for one element a row, so it stays in
// the cache.
void crossEntropyBackwardOnCpu(const at::Tensor& grad, at::Tensor log_probs_NC, const at::Tensor& target_N,
                               const std::optional<at::Tensor>& weight_C, int64_t reduction, int64_t ignore_index,
                               const at::Tensor& total_weight) {
  const int64_t rows = log_probs_NC.size(0);
  const int64_t row_bytes = log_probs_NC.size(1) * static_cast<int64_t>(log_probs_NC.itemsize());
  const int64_t of_tile = std::max<int64_t>(1, kTileBytes / std::max<int64_t>(1, row_bytes));
  const bool is_by_row = grad.dim() > 0;
  kernels::shareOut((rows + of_tile - 1) / of_tile, /*grain=*/1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = at::empty({std::min(of_tile, rows), log_probs_NC.size(1)}, log_probs_NC.options());
    for (int64_t first = begin * of_tile; first < std::min(end * of_tile, rows); first += of_tile) {
      const int64_t count = std::min(of_tile, rows - first);
      at::Tensor tile = rowsOf(log_probs_NC, first, count), of_loss = rowsOf(scratch, 0, count);
      at::cpu::nll_loss_backward_out(of_loss, is_by_row ? rowsOf(grad, first, count) : grad, tile,
                                     rowsOf(target_N, first, count), weight_C, reduction, ignore_index, total_weight);
      at::cpu::_log_softmax_backward_data_out(tile, of_loss, tile, /*dim=*/1, log_probs_NC.scalar_type());
    }
  });
}

void crossEntropyBackwardKernel(const at::Tensor& grad, at::Tensor log_probs_NC, const at::Tensor& target_N,
                                const std::optional<at::Tensor>& weight_C, int64_t reduction, int64_t ignore_index,
                                const at::Tensor& total_weight) {
  const at::Tensor of_loss =
      at::nll_loss_backward(grad, log_probs_NC, target_N, weight_C, reduction, ignore_index, total_weight);
  log_probs_NC.copy_(at::_log_softmax_backward_data(of_loss, log_probs_NC, /*dim=*/1, log_probs_NC.scalar_type()));
}

}  // namespace abele::operators
