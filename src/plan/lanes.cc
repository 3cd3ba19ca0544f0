#include "plan/lanes.h"

#include <map>

#include "base/cat.h"
#include "base/instructions.h"

namespace abele::plan {
namespace {

using ir::Direction;
using ir::ValueId;

// What runs for each micro-batch, and what that does to memory that outlives it.
class Reasons {
 public:
  explicit Reasons(const ir::Graph& graph) : graph_(graph), external_of_(graph.values.size(), ir::kNone) {
    for (const ir::Input& in : graph.inputs)
      if (in.kind != ir::InputKind::kArgument) external_of_[in.value] = in.external;
  }

  std::string first() {
    for (const ir::Stage& stage : graph_.stages)
      if (stage.space != graph_.stages[0].space) return "values go from one memory space to another";
    made_for_each_.assign(graph_.values.size(), false);
    for (const ir::Node& node : graph_.nodes) {
      if (node.is_view) continue;
      std::string why = node.direction == Direction::kUpdate ? whyUpdate(node) : whyNode(node);
      if (!why.empty()) return why;
    }
    for (const ir::Output& out : graph_.outputs)
      if (out.kind == ir::OutputKind::kUpdate && made_for_each_[graph_.baseOf(out.value)])
        return cat("every micro-batch writes ", graph_.externals[static_cast<size_t>(out.target)].name);
    return {};
  }

 private:
  static std::string describe(const ir::Node& node) {
    return node.source.empty() ? node.op : cat(node.op, " (", node.source, ")");
  }

  std::string whyUpdate(const ir::Node& node) {
    std::string why;
    forEachOperand(node, [&](ValueId v) {
      if (made_for_each_[graph_.baseOf(v)]) why = cat("the update reads what one micro-batch makes: ", describe(node));
    });
    for (const ir::Write& w : node.writes) external_of_[graph_.baseOf(w.after)] = external_of_[graph_.baseOf(w.before)];
    return why;
  }

  std::string whyNode(const ir::Node& node) {
    // Later micro-batches draw behind earlier ones.
    if (node.isRandom()) return cat("random numbers are drawn: ", describe(node));
    if (node.op == "abele_op::host_call" || node.op == "abele_op::print_tensor")
      return cat("the host sees the order of micro-batches: ", describe(node));
    if (node.op == "abele_op::cond" || node.op == "abele_op::for_loop")
      return cat("the program has a body that may do either: ", describe(node));
    bool has_results = false;
    const bool is_sum = hasTrait(node.op, kSums);
    for (const auto& group : node.results)
      for (const ValueId v : group)
        if (v >= 0) {
          has_results = true;
          made_for_each_[graph_.baseOf(v)] = true;
        }
    if (!has_results && node.writes.empty()) return cat("it has no result, only an effect: ", describe(node));
    for (const ir::Write& w : node.writes) {
      const int32_t external = external_of_[graph_.baseOf(w.before)];
      external_of_[graph_.baseOf(w.after)] = external;
      if (external < 0) {
        made_for_each_[graph_.baseOf(w.after)] = true;
        continue;
      }
      const std::string& name = graph_.externals[static_cast<size_t>(external)].name;
      if (!is_sum) return cat("every micro-batch writes ", name, ": ", describe(node));
      // Lanes go through an instruction one by one: of two of them, the second would come behind the first of all.
      if (sums_[external]++ > 0) return cat("several gradients are added to ", name);
    }
    return {};
  }

  const ir::Graph& graph_;
  std::vector<int32_t> external_of_;  // by base value: whose memory it is, or kNone
  std::vector<bool> made_for_each_;   // by base value: outside of updates, in memory of the micro-batch
  std::map<int32_t, int> sums_;       // by external: instructions that add to it
};

}  // namespace

std::string whyNoLanes(const ir::Graph& graph) { return Reasons(graph).first(); }

std::vector<bool> varyingBuffers(const ir::Graph& graph, const Liveness& liveness) {
  std::vector<bool> varies(liveness.buffers.size(), false);
  const auto bufferOf = [&](ValueId v) { return liveness.buffer_of[graph.baseOf(v)]; };
  const auto isExternal = [&](int32_t buffer) {
    const int32_t input = liveness.buffers[static_cast<size_t>(buffer)].input;
    return input >= 0 && graph.inputs[static_cast<size_t>(input)].kind != ir::InputKind::kArgument;
  };
  for (size_t b = 0; b < varies.size(); ++b)
    varies[b] = liveness.buffers[b].input >= 0 && !isExternal(static_cast<int32_t>(b));
  for (bool moved = true; moved;) {
    moved = false;
    for (const ir::Node& node : graph.nodes) {
      if (node.is_view || node.direction == Direction::kUpdate) continue;
      bool reads = false;
      const auto look = [&](ValueId v) {
        if (const int32_t b = bufferOf(v); b >= 0) reads = reads || varies[static_cast<size_t>(b)];
      };
      forEachOperand(node, look);
      forEachResult(node, look);
      if (!reads) continue;
      forEachResult(node, [&](ValueId v) {
        const int32_t b = bufferOf(v);
        if (b < 0 || isExternal(b) || varies[static_cast<size_t>(b)]) return;
        varies[static_cast<size_t>(b)] = moved = true;
      });
    }
  }
  return varies;
}

}  // namespace abele::plan
