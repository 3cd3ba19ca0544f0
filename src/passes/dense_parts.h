// Ranges of dense tensors along one dimension, stored without the rest of the tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace abele::passes {

/// A tensor without gaps, and without expanded dimensions.
bool isDense(const Type& type);
/// The dimensions from the slowest to the fastest in memory.
std::vector<size_t> memoryOrder(const Type& type);
/// The type of a part of a dense tensor: `length` elements along `dim`, without gaps, dimensions in the same order in
/// memory.
Type partType(const Type& type, int dim, int64_t length);
/// The place of a view of `base` in a part that has the first `length` elements along `dim`. The sizes of the view are
/// those of `view`.
ir::Value viewInPart(const Type& base, int dim, int64_t length, const ir::Value& view);

/// Elements begin to end - 1 along a dimension.
struct Range {
  int dim = 0;
  int64_t begin = 0, end = 0;
};
/// The smallest part of a base that holds a view of it. Nothing if that is the whole base, or the base is not dense.
std::optional<Range> rangeOfView(const Type& base, const ir::Value& view);

}  // namespace abele::passes
