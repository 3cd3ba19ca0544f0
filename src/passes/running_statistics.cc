#include "passes/running_statistics.h"

#include <vector>

namespace abele::passes {
namespace {

constexpr char kCounter[] = "num_batches_tracked";

/// True for an operator whose writes are running averages, in any of its overloads.
bool updatesStatistics(const ir::Node& node) {
  const bool is_norm = node.op.find("batch_norm") != std::string::npos || node.op == "abele_op::average_statistics";
  return is_norm && node.direction == ir::Direction::kForward && !node.writes.empty();
}

/// By base value: whether it is computed from the value `from`, through any chain of nodes.
std::vector<bool> madeOf(const ir::Graph& graph, ir::ValueId from) {
  std::vector<bool> made(graph.values.size(), false);
  made[graph.baseOf(from)] = true;
  for (const ir::Node& node : graph.nodes) {
    bool reads = false;
    ir::forEachOperand(node, [&](ir::ValueId v) { reads = reads || made[graph.baseOf(v)]; });
    if (reads) ir::forEachResult(node, [&](ir::ValueId v) { made[graph.baseOf(v)] = true; });
  }
  return made;
}

/// The module that a tensor belongs to, with the dot after it.
std::string ownerOf(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

class Finder {
 public:
  explicit Finder(const ir::Graph& graph) : graph_(graph), buffer_(graph.externals.size(), ir::kNone) {
    for (const ir::Input& input : graph.inputs)
      if (input.kind == ir::InputKind::kBuffer) buffer_[input.external] = input.value;
  }

  std::set<std::string> find() const {
    const std::vector<bool> is_updated = updatedByNorms();
    std::set<std::string> found, counters;
    for (const ir::Output& output : graph_.outputs) {
      const ir::ValueId buffer = output.kind == ir::OutputKind::kUpdate ? buffer_[output.target] : ir::kNone;
      if (buffer == ir::kNone || output.value == buffer) continue;
      if (!is_updated[graph_.baseOf(output.value)] && !returnsFromNorm(buffer, output.value)) continue;
      const std::string& name = graph_.externals[output.target].name;
      found.insert(name);
      counters.insert(ownerOf(name) + kCounter);
    }
    found.merge(counters);
    return found;
  }

 private:
  /// By base value: whether an operator of normalisation has updated its memory.
  std::vector<bool> updatedByNorms() const {
    std::vector<bool> updated(graph_.values.size(), false);
    for (const ir::Node& node : graph_.nodes)
      for (const ir::Write& write : node.writes)
        updated[graph_.baseOf(write.after)] = updatesStatistics(node) || updated[graph_.baseOf(write.before)];
    return updated;
  }

  bool returnsFromNorm(ir::ValueId buffer, ir::ValueId last) const {
    const std::vector<bool> from_buffer = madeOf(graph_, buffer);
    for (const ir::Node& node : graph_.nodes) {
      if (!updatesStatistics(node)) continue;
      for (const ir::Write& write : node.writes)
        if (from_buffer[graph_.baseOf(write.before)] && madeOf(graph_, write.after)[graph_.baseOf(last)]) return true;
    }
    return false;
  }

  const ir::Graph& graph_;
  std::vector<ir::ValueId> buffer_;  // by external: its value at the start of a micro-batch
};

}  // namespace

std::set<std::string> runningStatistics(const ir::Graph& graph) { return Finder(graph).find(); }

}  // namespace abele::passes
