// The products that one call adds up for all micro-batches side by side (runtime/kernels/lane_sums.h). In base/ because
// plan/ estimates what that saves.
#pragma once

#include <cstdint>

namespace abele {

/// Rows of a micro-batch: the library makes longer chains in parts.
constexpr int64_t kMostLaneDepth = 384;
/// Multiplications of a micro-batch: of more, the library's products are faster one by one (docs/performance.md).
constexpr int64_t kMostLaneWork = int64_t{1} << 18;

}  // namespace abele
