// Before:  %y = aten.relu(%x) {stage=0, device=0}; %z = aten.mul(%y, %w) {stage=1}, stages 0 and 1 in different spaces
// After:   %c = abele.transfer(none, %y) {stage=1}; %z = aten.mul(%c, %w)
// Order:   last: a transfer belongs to the task that reads the value first, and other passes move nodes between tasks.
// Cost:    O(nodes + operands + copies * tasks).   Undone by: nothing.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/instructions.h"
#include "ir/rewrite.h"
#include "ir/task.h"
#include "passes/dense_parts.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::Direction;
using ir::kNone;
using ir::Node;
using ir::Task;
using ir::ValueId;

// After this pass, a stage reads only memory of its own space. The first task that reads a base value of another space
// brings it there once; the other tasks there read the copy. Arguments come from the host to each space. So do
// externals that micro-batches do not write: each space has a copy of the ranges that it reads, which the host fills.
// If an update writes the external, transfers refresh the copies after it.
class Transfers {
 public:
  Transfers(ir::Graph& graph, bool holds_whole) : graph_(graph), holds_whole_(holds_whole) {
    for (const Node& node : graph.nodes) graph_.node_id_limit = std::max(graph_.node_id_limit, node.id + 1);
    positions_ = ir::positionsById(graph);
    findHomes();
  }

  Changed run() {
    behind_.resize(graph_.nodes.size());
    collectReaders();
    chooseTasks();
    for (Node& node : graph_.nodes)
      if (isReader(node)) readCopies(node);
    for (ir::Output& output : graph_.outputs)
      if (output.kind == ir::OutputKind::kResult && isExternal(output.value))
        output.value = copyOf(output.value, resultTask());
    if (copies_.empty()) return Changed::kNo;
    refreshCopies();
    ir::insertNodes(graph_, first_, behind_);
    ir::removeUnreadViews(graph_);  // views that only readers of copies read
    return Changed::kYes;
  }

 private:
  struct Copy {
    Task task;                        // the first task that reads it, which therefore brings it
    std::optional<Range> range = {};  // the part of an external; nothing: the whole value
    ValueId value = kNone;
  };
  struct Refresh {
    int32_t external = kNone;
    Copy copy;
  };
  struct Readers {
    std::set<Task> tasks;
    std::vector<std::optional<Range>> ranges;  // the parts of an external that they read; nothing: the whole value
  };
  using Key = std::pair<ValueId, int32_t>;  // base value and space

  static size_t index(ValueId v) { return static_cast<size_t>(v); }
  int32_t spaceOf(int32_t stage) const { return graph_.stages[index(stage)].space; }
  // The first forward returns a result that is an external.
  static Task resultTask() { return {0, Direction::kForward}; }
  bool isExternal(ValueId v) const { return external_of_[index(graph_.baseOf(v))] != kNone; }

  // --- where values are made -----------------------------------------------------------------------------------------
  //
  // home_[base]: the stage whose space has the value; kNone: every space has it, or nothing reads it.
  void findHomes() {
    home_.assign(graph_.values.size(), kNone);
    external_of_.assign(graph_.values.size(), kNone);
    is_written_.assign(graph_.externals.size(), false);
    is_updated_.assign(graph_.externals.size(), false);
    std::vector<int32_t> memory(graph_.values.size(), kNone);  // external whose contents a base value is
    for (const ir::Input& input : graph_.inputs)
      if (input.kind != ir::InputKind::kArgument)
        external_of_[index(input.value)] = memory[index(input.value)] = input.external;
    for (const Node& node : graph_.nodes) {
      if (node.is_view) continue;
      ir::forEachResult(node, [&](ValueId v) { home_[index(graph_.baseOf(v))] = node.stage; });
      for (const ir::Write& w : node.writes) {
        const int32_t external = memory[index(w.after)] = memory[index(w.before)];
        if (external != kNone)
          (node.direction == Direction::kUpdate ? is_updated_ : is_written_)[index(external)] = true;
      }
    }
    findHomesOfExternals();
  }

  // An external is at home with its last writer, or with its first reader if nothing writes it.
  void findHomesOfExternals() {
    std::vector<int32_t> home(graph_.externals.size(), kNone);
    for (const ir::Output& output : graph_.outputs)
      if (output.kind == ir::OutputKind::kUpdate && !isExternal(output.value)) {
        home[index(output.target)] = home_[index(graph_.baseOf(output.value))];
        const bool is_update = directionOf(output.value) == Direction::kUpdate;
        (is_update ? is_updated_ : is_written_)[index(output.target)] = true;
      }
    for (const ir::Input& input : graph_.inputs) {
      if (input.kind == ir::InputKind::kArgument) continue;
      // Further inputs of the external are copies that the pass has made.
      home_[index(input.value)] = std::exchange(home[index(input.external)], kNone);
    }
    for (const Node& node : graph_.nodes)
      if (isReader(node))
        ir::forEachOperand(node, [&](ValueId v) {
          const ValueId base = graph_.baseOf(v);
          if (isExternal(base) && home_[index(base)] == kNone) home_[index(base)] = node.stage;
        });
  }

  // A transfer is not a reader, because it may read other spaces.
  static bool isReader(const Node& node) { return !node.is_view && ownOp(node.op) != OwnOp::kTransfer; }

  Direction directionOf(ValueId v) const {
    const ir::NodeId def = graph_.values[index(graph_.baseOf(v))].def;
    return graph_.nodes[index(positions_[index(def)])].direction;
  }

  // Whether the host fills every copy of it.
  bool comesFromHost(ValueId base) const {
    const int32_t external = external_of_[index(base)];
    return external != kNone && !is_written_[index(external)];
  }

  bool isElsewhere(ValueId base, const Task& reader) const {
    const int32_t home = home_[index(base)];
    return home != kNone && spaceOf(home) != spaceOf(reader.stage);
  }

  // --- who brings a value --------------------------------------------------------------------------------------------
  void collectReaders() {
    for (const Node& node : graph_.nodes)
      if (isReader(node)) ir::forEachOperand(node, [&](ValueId v) { noteReader(v, ir::taskOf(node)); });
    for (const ir::Output& output : graph_.outputs)
      if (output.kind == ir::OutputKind::kResult && isExternal(output.value)) noteReader(output.value, resultTask());
  }

  void noteReader(ValueId v, const Task& task) {
    const ValueId base = graph_.baseOf(v);
    if (!isElsewhere(base, task)) return;
    Readers& readers = readers_[{base, spaceOf(task.stage)}];
    readers.tasks.insert(task);
    if (comesFromHost(base)) readers.ranges.push_back(rangeOf(v));
  }
  // Only of row-major externals: both ends of a message between processes need their elements in one order.
  std::optional<Range> rangeOf(ValueId v) const {
    const Type& type = graph_.values[index(graph_.baseOf(v))].type;
    if (holds_whole_) return std::nullopt;
    return type == contiguousType(type.dtype, type.sizes) ? rangeOfView(type, graph_.values[index(v)]) : std::nullopt;
  }

  // One copy serves all tasks that come after the first. Updates of several stages have no order among them, and
  // neither have some weight gradients, so each of these gets its own copy.
  void chooseTasks() {
    for (const auto& [key, readers] : readers_) {
      const std::set<Task>& tasks = readers.tasks;
      std::vector<Copy>& copies = copies_[key];
      if (comesFromHost(key.first)) {
        for (const std::optional<Range>& range : joinedRanges(key.first, readers.ranges))
          copies.push_back({*tasks.begin(), range});
        continue;
      }
      for (const Task& task : tasks) {
        const bool is_first =
            std::none_of(tasks.begin(), tasks.end(), [&](const Task& other) { return ir::precedes(other, task); });
        if (is_first) copies.push_back({task});
      }
    }
  }

  // Ranges that overlap become one. If they are together as large as the whole value, that takes their place.
  std::vector<std::optional<Range>> joinedRanges(ValueId base, std::vector<std::optional<Range>> ranges) const {
    const Type& type = graph_.values[index(base)].type;
    const auto first = [](const std::optional<Range>& range) {
      return range ? std::pair(range->dim, range->begin) : std::pair(kNone, int64_t{0});
    };
    std::ranges::sort(ranges, {}, first);
    std::vector<std::optional<Range>> joined;
    double share = 0;
    for (const std::optional<Range>& range : ranges) {
      if (!range) return {std::nullopt};
      if (!joined.empty() && joined.back()->dim == range->dim && range->begin < joined.back()->end)
        joined.back()->end = std::max(joined.back()->end, range->end);
      else
        joined.push_back(range);
    }
    for (const std::optional<Range>& range : joined)
      share += static_cast<double>(range->end - range->begin) / static_cast<double>(type.sizes[index(range->dim)]);
    return share < 1 ? joined : std::vector<std::optional<Range>>{std::nullopt};
  }

  bool serves(const Copy& copy, ValueId v, const Task& reader) const {
    if (!comesFromHost(graph_.baseOf(v))) return copy.task == reader || ir::precedes(copy.task, reader);
    if (!copy.range) return true;
    const std::optional<Range> range = rangeOf(v);
    return range && range->dim == copy.range->dim && copy.range->begin <= range->begin && range->end <= copy.range->end;
  }

  // --- copies --------------------------------------------------------------------------------------------------------
  void readCopies(Node& node) {
    const Task task = ir::taskOf(node);
    for (Arg& arg : node.args) forEachId(arg, [&](int64_t& id) { id = copyOf(static_cast<ValueId>(id), task); });
    for (ir::Write& w : node.writes) w.before = copyOf(w.before, task);
  }

  ValueId copyOf(ValueId v, const Task& reader) {
    const ValueId base = graph_.baseOf(v);
    const auto found = copies_.find({base, spaceOf(reader.stage)});
    if (found == copies_.end() || index(base) >= home_.size()) return v;
    const auto copy =
        std::find_if(found->second.begin(), found->second.end(), [&](const Copy& c) { return serves(c, v, reader); });
    ABELE_CHECK(copy != found->second.end(), "no task brings %", base, " to stage ", reader.stage);
    if (copy->value == kNone) copy->value = comesFromHost(base) ? addInput(base, *copy) : addTransfer(base, *copy);
    return v == base ? copy->value : viewOf(v, *copy, base);
  }

  ValueId addInput(ValueId base, const Copy& copy) {
    const int32_t external = external_of_[index(base)];
    const ir::InputKind kind = graph_.externals[index(external)].kind;
    Type type = graph_.values[index(base)].type;
    if (copy.range) type = partType(type, copy.range->dim, copy.range->end - copy.range->begin);
    const ValueId value = graph_.addInput(std::move(type), kind, external, "");
    if (copy.range) {
      graph_.inputs.back().dim = copy.range->dim;
      graph_.inputs.back().begin = copy.range->begin;
    }
    if (is_updated_[index(external)]) refreshes_.push_back({external, {copy.task, copy.range, value}});
    return value;
  }

  ValueId addTransfer(ValueId base, const Copy& copy) {
    Node& node = addNode(base, copy.task);
    const ir::NodeId id = node.id;
    node.op = ownOpName(OwnOp::kTransfer);
    node.args = {Arg::none(), Arg::id(base)};
    const ValueId value = graph_.addValue(graph_.values[index(base)].type, id);
    node.results = {{value}};
    return value;
  }

  ValueId viewOf(ValueId v, const Copy& copy, ValueId base) {
    const auto [known, is_new] = views_.emplace(std::pair(v, copy.value), kNone);
    if (!is_new) return known->second;
    ir::Value view = graph_.values[index(v)];
    if (copy.range) {
      const Type& type = graph_.values[index(base)].type;
      view.offset -= copy.range->begin * type.strides[index(copy.range->dim)];
      view = viewInPart(type, copy.range->dim, copy.range->end - copy.range->begin, view);
      if (view.offset == 0 && view.type == graph_.values[index(copy.value)].type) return known->second = copy.value;
    }
    const ir::NodeId def = graph_.values[index(copy.value)].def;
    Node& node = addNode(base, def == kNone ? resultTask() : task_of_.at(def));
    return known->second = ir::makeView(graph_, node, view.type, view.offset, copy.value);
  }

  // Adds a node for the task after the node that makes `base`.
  Node& addNode(ValueId base, const Task& task) {
    const ir::NodeId def = graph_.values[index(base)].def;
    const int32_t position = def == kNone ? kNone : positions_[index(def)];
    Node& node = (position == kNone ? first_ : behind_[index(position)]).emplace_back();
    node.id = graph_.takeNodeId();
    node.stage = task.stage;
    node.direction = task.direction;
    task_of_[node.id] = task;
    if (position == kNone) return node;
    const Node& maker = graph_.nodes[index(position)];
    node.source = maker.source;
    node.scope = maker.scope;
    return node;
  }

  // Updates write new contents of an external. Brings them to every other space that has a copy.
  void refreshCopies() {
    for (const Refresh& refresh : refreshes_) {
      ValueId updated = kNone;
      for (const ir::Output& output : graph_.outputs)
        if (output.kind == ir::OutputKind::kUpdate && output.target == refresh.external) updated = output.value;
      ABELE_CHECK(updated != kNone, "updates of external ", refresh.external, " have no last value");
      const ValueId source = rangeOfUpdated(updated, refresh.copy.range);
      Node& node = addNode(updated, {refresh.copy.task.stage, Direction::kUpdate});
      node.op = ownOpName(OwnOp::kTransfer);
      node.args = {Arg::id(refresh.copy.value), Arg::id(source)};
      const Type type = graph_.values[index(refresh.copy.value)].type;
      const ir::NodeId id = node.id;
      ir::Write write{.arg = 0, .view = type, .before = refresh.copy.value};
      write.after = graph_.addValue(type, id);
      node.writes = {write};
    }
  }

  ValueId rangeOfUpdated(ValueId updated, const std::optional<Range>& range) {
    if (!range) return updated;
    const ir::Value& value = graph_.values[index(updated)];
    const Node& maker = graph_.nodes[index(positions_[index(value.def)])];
    Type type = value.type;
    type.sizes[index(range->dim)] = range->end - range->begin;
    const int64_t offset = range->begin * type.strides[index(range->dim)];
    return ir::makeView(graph_, addNode(updated, ir::taskOf(maker)), type, offset, updated);
  }

  ir::Graph& graph_;
  bool holds_whole_;
  std::vector<int32_t> positions_;    // position of each node, by id
  std::vector<int32_t> home_;         // by base value: a stage
  std::vector<int32_t> external_of_;  // by value: the external that an input is
  std::vector<bool> is_written_;      // by external: whether micro-batches write it
  std::vector<bool> is_updated_;      // by external: whether updates write it
  std::map<Key, Readers> readers_;    // readers of values that are in another space
  std::map<Key, std::vector<Copy>> copies_;
  std::map<std::pair<ValueId, ValueId>, ValueId> views_;  // by view of the original, and copy of its base
  std::map<ir::NodeId, Task> task_of_;                    // tasks of the added nodes
  std::vector<Refresh> refreshes_;
  std::vector<Node> first_;                // nodes to add before all others
  std::vector<std::vector<Node>> behind_;  // nodes to add, by the position that they follow
};

bool hasOneSpace(const ir::Graph& graph) {
  return std::all_of(graph.stages.begin(), graph.stages.end(),
                     [&](const ir::Stage& stage) { return stage.space == graph.stages.front().space; });
}

}  // namespace

Changed insertTransfers(ir::Graph& graph, PassContext& context) {
  return hasOneSpace(graph) ? Changed::kNo : Transfers(graph, context.stages.holds_whole).run();
}

}  // namespace abele::passes
