// Private to pass shard: parts of values, views, and the two little graphs that a trial compares.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/rewrite.h"
#include "passes/shard_cuts.h"

namespace abele::passes {

inline size_t index(int64_t i) { return static_cast<size_t>(i); }

/// A value that devices have made in parts.
struct Parts {
  Type type;  // the type of the whole value
  int dim = 0;
  std::vector<int64_t> ends = {};
  std::vector<ir::ValueId> values = {};
};

/// The place of an operand of a part.
struct OperandPlace {
  const Parts* from = nullptr;  // the operand is in the part's own piece of its base; else in the whole base
  ir::Value value;              // its type, and its offset there
};

/// Makes each view of a base once.
class Views {
 public:
  explicit Views(ir::Graph& graph) : graph_(graph) {}
  /// Notes a view that the graph has already.
  void note(ir::ValueId view);
  /// add: appends a node with an id to the graph and returns it.
  ir::ValueId of(ir::ValueId base, const Type& type, int64_t offset, const std::function<ir::Node&()>& add);

 private:
  ir::Graph& graph_;
  std::map<std::tuple<ir::ValueId, std::string, int64_t>, ir::ValueId> known_;
};

/// Collects a node as it is, and its parts, in two graphs with the same inputs.
class TrialGraphs {
 public:
  explicit TrialGraphs(const ir::Graph& program)
      : program_(program), whole_views_(whole.graph), part_views_(parts.graph) {}

  struct Side {
    ir::Graph graph;
    std::map<ir::ValueId, ir::ValueId> inputs;  // by base in the program
  } whole, parts;

  /// An operand of the program's node in one of the graphs.
  ir::ValueId wholeOperand(ir::ValueId v);
  ir::ValueId partOperand(ir::ValueId v, const OperandPlace& place, size_t part);
  /// A copy, for operators that write their operand.
  static ir::ValueId copyOf(Side& side, ir::ValueId v);

  using Operand = std::function<ir::ValueId(size_t arg, ir::ValueId v)>;
  /// Adds the node with results of these types. operand: finds an operand of the program's node in the graph.
  static std::vector<ir::ValueId> add(Side& side, ir::Node node, const std::vector<Type>& results,
                                      const Operand& operand);
  /// Makes the trial compare a range of a result of the whole with a part's result.
  void compare(ir::ValueId of_whole, const Type& range, int64_t offset, ir::ValueId of_part);

 private:
  ir::ValueId input(Side& side, ir::ValueId v);
  ir::ValueId pieceOf(ir::ValueId base, const Parts& cut, size_t part);

  const ir::Graph& program_;
  Views whole_views_, part_views_;
  std::map<std::pair<ir::ValueId, size_t>, ir::ValueId> pieces_;
};

}  // namespace abele::passes
