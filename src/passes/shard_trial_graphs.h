// Private to pass shard: parts of values, views, and the two small graphs that a trial compares.
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

/// A value whose parts several devices have computed.
struct Parts {
  Type type;  // the type of the whole value
  int dim = 0;
  std::vector<int64_t> ends = {};
  std::vector<ir::ValueId> values = {};
};

/// The place of an operand of a part.
struct OperandPlace {
  const Parts* from = nullptr;  // the parts of the operand's base, if it reads its own part; null: it reads the whole
                                // base
  ir::Value value;              // its type, and its offset there
};

/// Makes each view of a base once.
class Views {
 public:
  explicit Views(ir::Graph& graph) : graph_(graph) {}
  /// Adds a view that the graph already has.
  void note(ir::ValueId view);
  /// add: appends a node with an id to the graph and returns it.
  ir::ValueId of(ir::ValueId base, const Type& type, int64_t offset, const std::function<ir::Node&()>& add);

 private:
  ir::Graph& graph_;
  std::map<std::tuple<ir::ValueId, std::string, int64_t>, ir::ValueId> known_;
};

/// Builds two graphs with the same inputs: one with a whole node, one with its parts.
class TrialGraphs {
 public:
  explicit TrialGraphs(const ir::Graph& program)
      : program_(program), whole_views_(whole.graph), part_views_(parts.graph) {}

  struct Side {
    ir::Graph graph;
    std::map<ir::ValueId, ir::ValueId> inputs;  // by base in the program
  } whole, parts;

  /// Adds an operand of the program's node to one of the graphs.
  ir::ValueId wholeOperand(ir::ValueId v);
  ir::ValueId partOperand(ir::ValueId v, const OperandPlace& place, size_t part);
  /// Adds a copy of a value, for operators that write their operand.
  static ir::ValueId copyOf(Side& side, ir::ValueId v);

  using Operand = std::function<ir::ValueId(size_t arg, ir::ValueId v)>;
  /// Adds the node with results of these types. operand: finds an operand of the program's node in the graph.
  static std::vector<ir::ValueId> add(Side& side, ir::Node node, const std::vector<Type>& results,
                                      const Operand& operand);
  /// Makes the trial compare a range of a whole result with a part's result.
  void compare(ir::ValueId of_whole, const Type& range, int64_t offset, ir::ValueId of_part);

 private:
  ir::ValueId input(Side& side, ir::ValueId v);
  ir::ValueId pieceOf(ir::ValueId base, const Parts& cut, size_t part);

  const ir::Graph& program_;
  Views whole_views_, part_views_;
  std::map<std::pair<ir::ValueId, size_t>, ir::ValueId> pieces_;
};

}  // namespace abele::passes
