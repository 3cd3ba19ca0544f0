// Before:  %s1 = aten.add_(%s0!, 1) {stage=0}, %s0 a buffer; %y = aten.mul(%x, %s1) {stage=1}
// After:   %c = aten.clone(%s1) {stage=0}; %y = aten.mul(%x, %c) {stage=1}
// Order:   after assign-stages, which tells the stages of readers; before lower-optimizer, whose updates the schedule
//          orders anyway.
// Cost:    O(nodes + operands).   Undone by: nothing.
#include <algorithm>
#include <map>
#include <vector>

#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::Direction;
using ir::kNone;
using ir::Node;
using ir::ValueId;

// If a micro-batch writes memory that outlives it, the memory belongs to the task that writes. When other tasks of this
// micro-batch run, that task may already be at a later micro-batch. So the other tasks read copies, which are ordinary
// values.
class Snapshots {
 public:
  explicit Snapshots(ir::Graph& graph) : graph_(graph), writer_(graph.values.size(), kNone) {
    for (const ir::Input& input : graph.inputs) {
      const bool lasts = input.kind == ir::InputKind::kParameter || input.kind == ir::InputKind::kBuffer;
      if (lasts) writer_[index(input.value)] = kNotWritten;
    }
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      addWrites(static_cast<int32_t>(i));
      graph.node_id_limit = std::max(graph.node_id_limit, graph.nodes[i].id + 1);
    }
  }

  Changed run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    source_ = &nodes;
    behind_.resize(nodes.size());
    for (Node& node : nodes) {
      if (!node.is_view && node.direction != Direction::kUpdate) readCopies(node);
      ++reader_;
    }
    for (ir::Output& output : graph_.outputs)
      if (output.kind == ir::OutputKind::kResult && isWrittenInput(output.value)) output.value = copyOf(output.value);
    graph_.nodes = std::move(nodes);
    if (copy_of_.empty()) return Changed::kNo;
    ir::insertNodes(graph_, first_, behind_);
    ir::removeUnreadViews(graph_);  // views that only readers of copies read
    return Changed::kYes;
  }

 private:
  static constexpr int32_t kNotWritten = -2;
  static size_t index(ValueId v) { return static_cast<size_t>(v); }

  // The writer of the first contents is the node that overwrites them, and of others the node that made them.
  void addWrites(int32_t position) {
    const Node& node = graph_.nodes[static_cast<size_t>(position)];
    if (node.direction != Direction::kForward) return;
    for (const ir::Write& w : node.writes) {
      int32_t& before = writer_[index(w.before)];
      if (before == kNone) continue;
      if (before == kNotWritten) before = position;
      writer_[index(w.after)] = position;
    }
  }

  bool isWrittenInput(ValueId v) const {
    const ValueId base = graph_.baseOf(v);
    return index(base) < writer_.size() && writer_[index(base)] >= 0 && isInput(base) && writerOf(base).stage > 0;
  }
  bool isInput(ValueId base) const { return graph_.values[index(base)].def == kNone; }
  const Node& writerOf(ValueId base) const { return (*source_)[static_cast<size_t>(writer_[index(base)])]; }

  void readCopies(Node& node) {
    for (Arg& arg : node.args) forEachId(arg, [&](int64_t& id) { replace(id, node); });
  }

  // A node needs the memory itself if it writes there, as a hook in backward may. Operands that overlap what it writes
  // are then read while they change, as in eager PyTorch.
  static bool writesInto(const Node& node, ValueId base) {
    return std::any_of(node.writes.begin(), node.writes.end(), [&](const ir::Write& w) { return w.before == base; });
  }

  void replace(int64_t& id, const Node& reader) {
    const auto v = static_cast<ValueId>(id);
    const ValueId base = graph_.baseOf(v);
    if (writer_[index(base)] < 0 || writesInto(reader, base)) return;
    const Node& writer = writerOf(base);
    // An earlier stage would have to wait for the micro-batch before; plan refuses that if it cannot.
    const bool is_later = reader.direction != Direction::kForward || reader.stage > writer.stage;
    if (is_later) id = copyOf(v);
  }

  ValueId copyOf(ValueId v) {
    if (const auto known = copy_of_.find(v); known != copy_of_.end()) return known->second;
    const ir::Value value = graph_.values[index(v)];
    const int32_t writer = writer_[index(value.base)];
    // The node that overwrites the first contents may follow the reader in the program.
    const int32_t after = isInput(value.base) ? std::min(writer, reader_) - 1 : writer;
    std::vector<Node>& place = after < 0 ? first_ : behind_[static_cast<size_t>(after)];
    if (value.base == v) {
      const ValueId copy = addCopy(place, value);
      copy_of_[v] = copy;
      return copy;
    }
    const ValueId base = copyOf(value.base);
    Node& node = addNode(place, value.base);
    return copy_of_[v] = ir::makeView(graph_, node, v, base);
  }

  ValueId addCopy(std::vector<Node>& place, const ir::Value& value) {
    Node& node = addNode(place, value.base);
    node.op = "aten::clone";
    node.args = {Arg::id(value.base), Arg::none()};
    const ValueId copy = graph_.addValue(value.type, node.id);
    node.results = {{copy}};
    return copy;
  }

  // Adds a node to the task of the writer.
  Node& addNode(std::vector<Node>& place, ValueId base) {
    return place.emplace_back(ir::nodeBeside(graph_, "", writerOf(base)));
  }

  ir::Graph& graph_;
  std::vector<int32_t> writer_;  // by base value: position of the writer
  std::map<ValueId, ValueId> copy_of_;
  const std::vector<Node>* source_ = nullptr;
  int32_t reader_ = 0;                     // position of the node that gets copies
  std::vector<Node> first_;                // nodes to add before all others
  std::vector<std::vector<Node>> behind_;  // nodes to add, by the position that they follow
};

}  // namespace

Changed snapshotWritten(ir::Graph& graph, PassContext&) { return Snapshots(graph).run(); }

}  // namespace abele::passes
