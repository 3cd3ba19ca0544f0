#include "capture/stride_readers.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace abele::capture {
namespace {

const std::unordered_map<std::string, int> kExact = {
#define ABELE_EXACT(name, factor) {name, factor},
#include "capture/exact_elements.def"
#undef ABELE_EXACT
};

bool isOne(const Arg& arg) {
  const Arg::Kind kind = arg.kind == Arg::Kind::kNumber ? arg.number_kind : arg.kind;
  return kind == Arg::Kind::kDouble ? arg.d == 1 : arg.i == 1;
}

bool isExact(const ir::Node& node) {
  const auto row = kExact.find(node.op);
  if (row == kExact.end()) return false;
  return row->second < 0 || isOne(node.args.at(static_cast<size_t>(row->second)));
}

/// Whether these sizes and strides alone decide the strides of a result of these sizes.
bool decides(const Type& operand, const std::vector<int64_t>& sizes) {
  if (operand.sizes != sizes) return false;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && operand.strides[d] == 0) return false;
  return true;
}

class Walk {
 public:
  Walk(const ir::Graph& graph, ir::ValueId input) : graph_(graph), has_strides_(graph.values.size(), false) {
    if (input >= 0) has_strides_[static_cast<size_t>(graph.baseOf(input))] = true;
  }

  const ir::Node* run() {
    for (const ir::Node& node : graph_.nodes) {
      if (node.is_view) continue;
      bool reads = false;
      ir::forEachOperand(node, [&](ir::ValueId v) { reads = reads || hasStrides(v); });
      if (!reads) continue;
      if (!isExact(node)) return &node;
      follow(node);
    }
    return nullptr;
  }

 private:
  /// Whether the memory of the value has the strides that are looked for, and the value shows them.
  bool hasStrides(ir::ValueId v) const {
    return v >= 0 && has_strides_[static_cast<size_t>(graph_.baseOf(v))] && graph_.values[v].type.numel() > 1;
  }

  void follow(const ir::Node& node) {
    ir::ValueId first = ir::kNone;
    ir::forEachOperand(node, [&](ir::ValueId v) { first = first < 0 ? v : first; });
    for (const std::vector<ir::ValueId>& group : node.results)
      for (const ir::ValueId v : group)
        if (v >= 0 && (hasStrides(first) || !decides(graph_.values[first].type, graph_.values[v].type.sizes)))
          has_strides_[static_cast<size_t>(graph_.baseOf(v))] = true;
    for (const ir::Write& write : node.writes)
      if (write.after >= 0)
        has_strides_[static_cast<size_t>(write.after)] = has_strides_[static_cast<size_t>(graph_.baseOf(write.before))];
  }

  const ir::Graph& graph_;
  std::vector<bool> has_strides_;  // by base value
};

}  // namespace

const ir::Node* firstReaderOfStrides(const ir::Graph& graph, ir::ValueId input) { return Walk(graph, input).run(); }

}  // namespace abele::capture
