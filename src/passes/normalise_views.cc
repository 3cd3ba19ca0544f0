// Before:  %1 = view(%0+0) of %0's own type, as from detach; %2 and %3 the same view of %0; %4 an unread view
// After:   %1's readers read %0, %3's read %2; the nodes that made %1, %3 and %4 are gone
// Order:   first, so that equal tensors have equal ids.
// Cost:    O(values log values + operands).   Undone by: nothing.
#include <map>
#include <numeric>
#include <tuple>

#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::ValueId;

// For each value, the value to read instead: its base, the first view like it, or itself.
std::vector<ValueId> firstLikeIt(const ir::Graph& graph, bool* any) {
  std::vector<ValueId> first(graph.values.size());
  std::iota(first.begin(), first.end(), 0);
  std::map<std::tuple<ValueId, int64_t, DType, std::vector<int64_t>, std::vector<int64_t>>, ValueId> seen;
  for (const ir::Node& node : graph.nodes) {
    ir::forEachResult(node, [&](ValueId v) {
      const ir::Value& value = graph.values[v];
      if (value.base == v) return;
      if (value.offset == 0 && value.type == graph.values[value.base].type) {
        first[v] = value.base;
      } else {
        auto key = std::make_tuple(value.base, value.offset, value.type.dtype, value.type.sizes, value.type.strides);
        first[v] = seen.emplace(std::move(key), v).first->second;
      }
      *any = *any || first[v] != v;
    });
  }
  return first;
}

}  // namespace

Changed normaliseViews(ir::Graph& graph, PassContext&) {
  bool merged = false;
  std::vector<ValueId> first = firstLikeIt(graph, &merged);
  if (merged) {
    ir::renameOperands(graph, first);
    // Removes unread values from the results. A node without results is dropped below.
    for (ir::Node& node : graph.nodes)
      for (auto& group : node.results)
        for (ValueId& v : group)
          if (v >= 0 && first[v] != v) {
            ir::forgetValue(graph, v);
            v = ir::kNone;
          }
  }
  bool dropped = ir::removeUnreadViews(graph);
  return merged || dropped ? Changed::kYes : Changed::kNo;
}

}  // namespace abele::passes
