#include "passes/dense_parts.h"

#include <algorithm>
#include <numeric>

namespace abele::passes {

bool isDense(const Type& type) {
  return type.defined() && type.numel() > 0 && type.extent() == type.numel() &&
         std::none_of(type.strides.begin(), type.strides.end(), [](int64_t stride) { return stride == 0; });
}

std::vector<size_t> memoryOrder(const Type& type) {
  std::vector<size_t> order(type.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return type.strides[a] > type.strides[b]; });
  return order;
}

Type partType(const Type& type, int dim, int64_t length) {
  Type part = type;
  part.sizes[static_cast<size_t>(dim)] = length;
  const std::vector<size_t> order = memoryOrder(type);
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    part.strides[*d] = stride;
    stride *= part.sizes[*d];
  }
  return part;
}

ir::Value viewInPart(const Type& base, int dim, int64_t length, const ir::Value& view) {
  const int64_t fast = base.strides[static_cast<size_t>(dim)], block = fast * base.sizes[static_cast<size_t>(dim)];
  ir::Value part = view;
  part.offset = view.offset / block * fast * length + view.offset % block;
  for (int64_t& stride : part.type.strides)
    if (stride >= block && stride % block == 0) stride = stride / block * fast * length;
  return part;
}

// In memory, the indices of a dimension repeat every `block` elements. Steps of whole blocks do not change the index.
std::optional<Range> rangeOfView(const Type& base, const ir::Value& view) {
  if (!isDense(base) || view.type.dtype != base.dtype || view.type.numel() == 0) return std::nullopt;
  std::optional<Range> best;
  double best_share = 1;
  for (size_t d = 0; d < base.sizes.size(); ++d) {
    const int64_t fast = base.strides[d], block = fast * base.sizes[d], first = view.offset % block;
    int64_t last = first;
    for (size_t v = 0; v < view.type.sizes.size(); ++v)
      if (view.type.strides[v] % block != 0) last += (view.type.sizes[v] - 1) * view.type.strides[v];
    if (last >= block) continue;
    const Range range{static_cast<int>(d), first / fast, last / fast + 1};
    const double share = static_cast<double>(range.end - range.begin) / static_cast<double>(base.sizes[d]);
    if (share >= best_share) continue;
    best_share = share;
    best = range;
  }
  return best;
}

}  // namespace abele::passes
