#include "kernels/parallel.h"

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/from_blob.h>

namespace abele::kernels {

// Uses an iterator over one byte for each range, which torch's compiled code shares out. The bytes are never read.
void shareOut(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> fn) {
  grain = std::max<int64_t>(grain, 1);
  const int64_t ranges =
      at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), (count + grain - 1) / grain);
  if (ranges <= 1) return at::parallel_for(0, count, grain, fn);
  std::vector<uint8_t> bytes(static_cast<std::size_t>(ranges));
  at::Tensor walk = at::from_blob(bytes.data(), {ranges}, at::kByte);
  const int64_t of_range = (count + ranges - 1) / ranges;
  at::TensorIterator iterator = at::TensorIterator::nullary_op(walk);
  iterator.for_each(
      [&](char** at_byte, const int64_t* /*strides*/, int64_t num_bytes) {
        const int64_t first = at_byte[0] - reinterpret_cast<char*>(bytes.data());
        const int64_t begin = first * of_range, end = std::min(count, (first + num_bytes) * of_range);
        if (begin < end) fn(begin, end);
      },
      /*grain_size=*/1);
}

}  // namespace abele::kernels
