// Works on a few rows at a time, so that the results of one kernel are still in the cache when the next kernel reads
// them. The kernels are ATen's. They give a row the same bits in every tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>

#include "kernels/parallel.h"

namespace abele::operators {

/// Bytes of one tensor's rows in a tile: a few such tensors fit into a second-level cache.
constexpr int64_t kTileBytes = int64_t{1} << 17;

/// The number of rows in a tile, for rows of row_bytes each.
inline int64_t rowsOfTile(int64_t row_bytes) {
  return std::max<int64_t>(1, kTileBytes / std::max<int64_t>(1, row_bytes));
}

/// The rows from begin to begin + count of a tensor on the CPU, made without the dispatcher.
inline at::Tensor rowsOf(const at::Tensor& tensor, int64_t begin, int64_t count) {
  at::DimVector sizes(tensor.sizes());
  sizes[0] = count;
  return at::cpu::as_strided(tensor, sizes, tensor.strides(), tensor.storage_offset() + begin * tensor.stride(0));
}

/// Calls fn(begin, end) for ranges of tiles. There are `rows` rows in tiles of `of_tile`, and this thread's intra-op
/// threads share the ranges. fn allocates the memory that it needs once for its range.
template <class Fn>
void forTiles(int64_t rows, int64_t of_tile, const Fn& fn) {
  const int64_t tiles = (rows + of_tile - 1) / of_tile;
  kernels::shareOut(tiles, /*grain=*/1, fn);
}

}  // namespace abele::operators
