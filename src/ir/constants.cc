#include "ir/constants.h"

#include <algorithm>
#include <limits>

namespace abele::ir {
namespace {

bool worksInForward(const Node& node) { return node.direction == Direction::kForward && !node.is_view; }

}  // namespace

std::vector<bool> constantForward(const Graph& graph) {
  std::vector<bool> is_constant(graph.values.size(), false);  // by base
  for (const Input& input : graph.inputs) is_constant[input.value] = input.kind == InputKind::kConstant;
  std::vector<bool> found(graph.nodes.size(), false);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!worksInForward(node)) continue;
    bool all = true;
    forEachOperand(node, [&](ValueId v) { all = all && is_constant[graph.baseOf(v)]; });
    if (!all) continue;
    found[i] = true;
    forEachResult(node, [&](ValueId v) { is_constant[v] = true; });
  }
  return found;
}

void placeAtFirstReader(const Graph& graph, const std::vector<int32_t>& made_in, std::vector<int32_t>& places) {
  constexpr int32_t kNoReader = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> first_reader(graph.values.size(), kNoReader);  // by base
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (!worksInForward(node)) continue;
    if (places[i] == kNone) {
      int32_t first = kNoReader;
      forEachResult(node, [&](ValueId v) { first = std::min(first, first_reader[graph.baseOf(v)]); });
      places[i] = first == kNoReader ? made_in[i] : first;
    }
    forEachOperand(node, [&](ValueId v) {
      int32_t& first = first_reader[graph.baseOf(v)];
      first = std::min(first, places[i]);
    });
  }
}

}  // namespace abele::ir
