#include "passes/reduce.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "ir/rewrite.h"
#include "ir/text.h"

namespace abele::passes {
namespace {

using ir::Graph;
using ir::kNone;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

constexpr int32_t kUndefined = -2, kInput = -1;

/// By value: the position of the node that defines it, kInput, or kUndefined.
std::vector<int32_t> definitions(const Graph& graph) {
  std::vector<int32_t> defined(graph.values.size(), kUndefined);
  for (const ir::Input& input : graph.inputs) defined[input.value] = kInput;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    forEachResult(graph.nodes[i], [&](ValueId v) { defined[v] = static_cast<int32_t>(i); });
  return defined;
}

/// Values in the order in which they are defined.
std::vector<ValueId> valuesInOrder(const Graph& graph) {
  std::vector<ValueId> order;
  for (const ir::Input& input : graph.inputs) order.push_back(input.value);
  for (const Node& node : graph.nodes) forEachResult(node, [&](ValueId v) { order.push_back(v); });
  return order;
}

/// By value: whether a remaining node, output or view needs it.
std::vector<bool> readValues(const Graph& graph) {
  std::vector<bool> read(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    forEachOperand(node, [&](ValueId v) { read[v] = read[graph.baseOf(v)] = true; });
    forEachResult(node, [&](ValueId v) {
      if (graph.baseOf(v) != v) read[graph.baseOf(v)] = true;
    });
  }
  for (const ir::Output& output : graph.outputs) read[output.value] = read[graph.baseOf(output.value)] = true;
  return read;
}

enum class Substitute { kEarlierValue, kNewArgument };

// A graph without some of its nodes. Readers of their results read other values instead.
class Removal {
 public:
  Removal(const Graph& graph, const std::vector<bool>& remove, Substitute substitute)
      : graph_(graph), remove_(remove), substitute_(substitute), defined_(definitions(graph)) {
    order_ = valuesInOrder(graph);
    instead_.assign(graph.values.size(), kNone);
  }

  Graph run() {
    out_ = graph_;
    for (size_t i = 0; i < out_.nodes.size(); ++i)
      if (!remove_[i]) readOthers(out_.nodes[i]);
    for (ir::Output& output : out_.outputs) output.value = survivor(output.value);
    ir::removeNodes(out_, remove_);
    return std::move(out_);
  }

 private:
  bool isRemoved(ValueId v) const { return defined_[v] >= 0 && remove_[static_cast<size_t>(defined_[v])]; }

  void readOthers(Node& node) {
    const auto read = [&](int64_t& id) {
      // A view node only names the value whose memory it shows, so it moves to the base.
      const bool moves = node.is_view && isRemoved(static_cast<ValueId>(id));
      id = survivor(moves ? graph_.baseOf(static_cast<ValueId>(id)) : static_cast<ValueId>(id));
    };
    for (Arg& arg : node.args) forEachId(arg, read);
    for (ir::Write& w : node.writes) w.before = survivor(w.before);
    forEachResult(node, [&](ValueId v) {
      if (graph_.baseOf(v) != v) out_.values[v].base = survivor(graph_.baseOf(v));
    });
  }

  ValueId survivor(ValueId v) {
    if (!isRemoved(v)) return v;
    if (instead_[v] == kNone) instead_[v] = find(v);
    return instead_[v];
  }

  ValueId find(ValueId v) {
    const Node& maker = graph_.nodes[static_cast<size_t>(defined_[v])];
    for (const ir::Write& w : maker.writes)
      if (w.after == v) return survivor(w.before);
    const ir::Value& value = graph_.values[v];
    if (substitute_ == Substitute::kEarlierValue)
      for (ValueId other : order_) {
        if (defined_[other] >= defined_[v]) break;
        const bool fits = graph_.values[other].type == value.type && (value.base != v || graph_.baseOf(other) == other);
        if (fits && !isRemoved(other)) return other;
      }
    int32_t arguments = 0;
    for (const ir::Input& input : out_.inputs)
      if (input.kind == ir::InputKind::kArgument) arguments = std::max(arguments, input.external + 1);
    return out_.addInput(value.type, ir::InputKind::kArgument, arguments, "");
  }

  const Graph& graph_;
  const std::vector<bool>& remove_;
  Substitute substitute_;
  std::vector<int32_t> defined_;
  std::vector<ValueId> order_;
  std::vector<ValueId> instead_;  // by removed value: the value to read instead
  Graph out_;
};

/// Calls fn(external) for each place that names an external.
template <class Fn>
void forEachNamedExternal(Graph& graph, Fn&& fn) {
  const auto visit = [&](int32_t& external) {
    if (external >= 0 && static_cast<size_t>(external) < graph.externals.size()) fn(external);
  };
  for (ir::External& external : graph.externals) visit(external.owner);
  for (ir::Input& input : graph.inputs)
    if (input.kind != ir::InputKind::kArgument) visit(input.external);
  for (ir::Output& output : graph.outputs)
    if (output.kind == ir::OutputKind::kGradient || output.kind == ir::OutputKind::kUpdate) visit(output.target);
}

/// Removes those of the externals in this range that nothing names.
void dropExternals(Graph& graph, size_t begin, size_t end) {
  std::vector<bool> keep(graph.externals.size(), true);
  for (size_t i = begin; i < end; ++i) keep[i] = false;
  forEachNamedExternal(graph, [&](int32_t& external) { keep[static_cast<size_t>(external)] = true; });
  std::vector<int32_t> index;
  int32_t kept = 0;
  for (const bool keeps : keep) index.push_back(keeps ? kept++ : kNone);
  forEachNamedExternal(graph, [&](int32_t& external) { external = index[static_cast<size_t>(external)]; });
  size_t next = 0;
  std::erase_if(graph.externals, [&](const ir::External&) { return !keep[next++]; });
}

/// The graph with new ids of values and nodes and new numbers of arguments, without gaps, in the order of the text.
Graph renumbered(const Graph& graph) {
  Graph out = graph;
  std::vector<ValueId> new_id(graph.values.size(), kNone);
  out.values.clear();
  for (ValueId v : valuesInOrder(graph)) {
    new_id[v] = static_cast<ValueId>(out.values.size());
    out.values.push_back(graph.values[v]);
  }
  const std::vector<int32_t> position = ir::positionsById(graph);
  const auto nodeId = [&](NodeId id) {
    const bool is_left = id >= 0 && static_cast<size_t>(id) < position.size();
    return is_left ? position[static_cast<size_t>(id)] : kNone;
  };
  for (ir::Value& value : out.values) {
    value.base = new_id[value.base];
    value.def = nodeId(value.def);
  }
  int32_t arguments = 0;
  for (ir::Input& input : out.inputs) {
    input.value = new_id[input.value];
    if (input.kind == ir::InputKind::kArgument) input.external = arguments++;
  }
  ir::renameOperands(out, new_id);
  for (size_t i = 0; i < out.nodes.size(); ++i) {
    Node& node = out.nodes[i];
    node.id = static_cast<NodeId>(i);
    node.forward = nodeId(node.forward);
    for (auto& group : node.results)
      for (ValueId& v : group)
        if (v >= 0) v = new_id[v];
    for (ir::Write& w : node.writes) w.after = new_id[w.after];
  }
  out.node_id_limit = static_cast<NodeId>(out.nodes.size());
  return out;
}

class Reducer {
 public:
  Reducer(Graph graph, ir::Form form, const std::function<bool(const Graph&)>& shows)
      : graph_(std::move(graph)), form_(form), shows_(shows) {
    isNew(graph_);
  }

  Graph run() {
    do {
      progress_ = false;
      dropOutputs();
      dropNodes();
      dropResults();
      readEarlier();
      dropInputs();
      dropTable(&Graph::blocks, &Node::block);
      dropTable(&Graph::stages, &Node::stage);
      dropDetails();
    } while (progress_);
    accept(renumbered(graph_));
    return std::move(graph_);
  }

 private:
  bool accept(Graph candidate) {
    if (!ir::verify(candidate, form_).empty() || !isNew(candidate) || !shows_(candidate)) return false;
    graph_ = std::move(candidate);
    return progress_ = true;
  }

  // Tries a copy that `change` has changed.
  template <class Change>
  bool attempt(Change&& change) {
    Graph candidate = graph_;
    change(candidate);
    return candidate != graph_ && accept(std::move(candidate));
  }

  // Hashes are stored instead of texts, which would take gigabytes. If two texts have one hash, a candidate is lost.
  bool isNew(const Graph& graph) { return asked_.insert(std::hash<std::string>()(ir::print(graph))).second; }

  // Tries ranges of count() items from the last to the first: all, halves, quarters, single ones. tries(begin, end) may
  // remove the range; the items after it then move up.
  template <class Count, class Try>
  void overRanges(Count&& count, Try&& tries) {
    for (size_t length = count(); length > 0; length /= 2)
      for (size_t end = count(); end > 0;) {
        const size_t begin = end > length ? end - length : 0;
        tries(begin, end);
        end = begin;
      }
  }
  static std::vector<bool> flags(size_t size, size_t begin, size_t end) {
    std::vector<bool> set(size, false);
    std::fill(set.begin() + static_cast<std::ptrdiff_t>(begin), set.begin() + static_cast<std::ptrdiff_t>(end), true);
    return set;
  }

  void dropOutputs() {
    overRanges([&] { return graph_.outputs.size(); },
               [&](size_t begin, size_t end) {
                 attempt([&](Graph& g) {
                   g.outputs.erase(g.outputs.begin() + static_cast<std::ptrdiff_t>(begin),
                                   g.outputs.begin() + static_cast<std::ptrdiff_t>(end));
                 });
               });
  }

  void dropNodes() {
    overRanges([&] { return graph_.nodes.size(); },
               [&](size_t begin, size_t end) {
                 const std::vector<bool> remove = flags(graph_.nodes.size(), begin, end);
                 accept(Removal(graph_, remove, Substitute::kEarlierValue).run()) ||
                     accept(Removal(graph_, remove, Substitute::kNewArgument).run());
               });
  }

  // Drops unread results. A list keeps its length.
  void dropResults() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      for (size_t r = 0; r < graph_.nodes[i].results.size(); ++r)
        for (size_t e = 0; e < graph_.nodes[i].results[r].size(); ++e) {
          const ValueId v = graph_.nodes[i].results[r][e];
          if (v < 0 || readValues(graph_)[v]) continue;
          attempt([&](Graph& g) {
            g.nodes[i].results[r][e] = kNone;
            ir::forgetValue(g, v);
          });
        }
  }

  // Operands and outputs become the first value of their type, so that the nodes in between become unused.
  void readEarlier() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].is_view) continue;
      size_t operands = 0;
      forEachOperand(graph_.nodes[i], [&](ValueId) { ++operands; });
      overRanges([&] { return operands; }, [&](size_t begin, size_t end) { readEarlier(i, begin, end); });
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      attempt([&](Graph& g) {
        ValueId& v = g.outputs[i].value;
        v = firstLike(v, static_cast<int32_t>(graph_.nodes.size()));
      });
  }

  void readEarlier(size_t at, size_t begin, size_t end) {
    attempt([&](Graph& g) {
      Node& node = g.nodes[at];
      size_t operand = 0;
      const auto read = [&](int64_t& id) {
        const size_t number = operand++;
        const auto v = static_cast<ValueId>(id);
        const bool is_written =
            std::any_of(node.writes.begin(), node.writes.end(), [&](const ir::Write& w) { return w.before == v; });
        if (number >= begin && number < end && !is_written) id = firstLike(v, static_cast<int32_t>(at));
      };
      for (Arg& arg : node.args) forEachId(arg, read);
    });
  }

  /// The first value of the type of v, if it is defined before v and before this position.
  ValueId firstLike(ValueId v, int32_t position) const {
    const std::vector<int32_t> defined = definitions(graph_);
    for (ValueId other : valuesInOrder(graph_)) {
      if (other == v || defined[other] >= position) break;
      if (graph_.values[other].type == graph_.values[v].type) return other;
    }
    return v;
  }

  void dropInputs() {
    overRanges([&] { return graph_.inputs.size(); },
               [&](size_t begin, size_t end) {
                 const std::vector<bool> read = readValues(graph_);
                 attempt([&](Graph& g) {
                   g.inputs.clear();
                   for (size_t i = 0; i < graph_.inputs.size(); ++i) {
                     const ir::Input& input = graph_.inputs[i];
                     if (i < begin || i >= end || read[input.value])
                       g.inputs.push_back(input);
                     else
                       ir::forgetValue(g, input.value);
                   }
                 });
               });
    overRanges([&] { return graph_.externals.size(); },
               [&](size_t begin, size_t end) { attempt([&](Graph& g) { dropExternals(g, begin, end); }); });
  }

  // Drops all items of a table that nodes name, or merges one into the one before it.
  template <class Table>
  void dropTable(Table Graph::*table, int32_t Node::*index) {
    attempt([&](Graph& g) {
      (g.*table).clear();
      for (Node& node : g.nodes) node.*index = kNone;
    });
    for (size_t i = (graph_.*table).size(); i-- > 1;)
      attempt([&](Graph& g) {
        (g.*table).erase((g.*table).begin() + static_cast<std::ptrdiff_t>(i));
        for (Node& node : g.nodes) node.*index -= node.*index >= static_cast<int32_t>(i);
      });
  }

  // Drops details of nodes and values, one kind of detail after the other.
  void dropDetails() {
    const auto ofNodes = [&](auto&& clear) {
      overRanges([&] { return graph_.nodes.size(); },
                 [&](size_t begin, size_t end) {
                   attempt([&](Graph& g) {
                     for (size_t i = begin; i < end; ++i) clear(g.nodes[i]);
                   });
                 });
    };
    ofNodes([](Node& node) { node.source.clear(); });
    ofNodes([](Node& node) { node.scope.clear(); });
    ofNodes([](Node& node) { node.forward = kNone; });
    ofNodes([](Node& node) { node.phase = kNone; });
    ofNodes([](Node& node) {
      node.random_draws = node.random_offset = kNone;
      node.normals = {};
      node.draws_vary = false;
    });
    attempt([](Graph& g) {
      g.random_draws = 0;
      g.normals = {};
    });
    attempt([](Graph& g) {
      for (ir::Value& value : g.values) value.name.clear();
    });
    attempt([](Graph& g) {
      for (ir::Block& block : g.blocks) block.source.clear();
    });
  }

  Graph graph_;
  ir::Form form_;
  const std::function<bool(const Graph&)>& shows_;
  std::unordered_set<size_t> asked_;  // hashes of the texts that were tried
  bool progress_ = false;
};

}  // namespace

ir::Graph reduceGraph(ir::Graph graph, ir::Form form, const std::function<bool(const ir::Graph&)>& shows) {
  return Reducer(std::move(graph), form, shows).run();
}

}  // namespace abele::passes
