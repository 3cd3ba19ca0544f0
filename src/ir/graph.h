// The program of one micro-batch (and of one weight update) as a pure SSA graph of ATen calls. Text form: docs/ir.md.
// Read first: base/type.h, base/arg.h. Next: ir/text.h (print, parse), ir/verify.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/arg.h"
#include "base/normals.h"
#include "base/type.h"

namespace abele::ir {

using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr int32_t kNone = -1;

/// The part of a training step that a node belongs to. kUpdate nodes run once per weight update, all others per
/// micro-batch.
enum class Direction : uint8_t { kForward, kBackward, kWeightGrad, kUpdate };

/// A tensor. A view uses the memory of its base: `base` is not its own id, and its elements start at `offset` from the
/// base's first element, counted in elements of its own dtype. Views need no computation: base, offset and type
/// describe them fully.
struct Value {
  Type type;
  NodeId def = kNone;    // node that makes it; kNone for a graph input
  ValueId base = kNone;  // own id if the value is not a view
  int64_t offset = 0;
  std::string name;  // optional, for people
  bool operator==(const Value&) const = default;
};

/// An operand that the node updates in place. The graph stays SSA: `before` is the whole base value before the write,
/// `after` the whole base value afterwards, and the op itself gets the region (view, offset) of it. `before` keeps its
/// contents for other readers: the plan copies it unless this is its last use. args[arg] (or its element) holds
/// `before`.
struct Write {
  int32_t arg = 0;
  int32_t element = kNone;  // index inside a list argument
  Type view;                // the written region
  int64_t offset = 0;       // in elements of view.dtype, from the base's first element
  ValueId before = kNone;
  ValueId after = kNone;
  bool operator==(const Write&) const = default;
};

struct Node {
  NodeId id = kNone;
  std::string op;                             // ATen's name, "aten::add.Tensor", or "abele::..."
  std::vector<Arg> args;                      // in schema order, all of them (defaults included)
  std::vector<std::vector<ValueId>> results;  // per schema return: one id, or the ids of a Tensor[]; kNone = not used
                                              // (also for the returned alias of a written operand)
  std::vector<Write> writes;
  bool is_view = false;  // makes a view of an operand; no work at run time
  Direction direction = Direction::kForward;
  int32_t block = kNone;   // index into Graph::blocks; kNone = outside every block
  NodeId forward = kNone;  // for a backward node: the forward node whose gradient it makes, which may have been
                           // removed. Ids ascend along forward. Only set in graphs that may be cut anywhere (AutoSplit)
  int32_t stage = kNone;   // set by assign-stages
  int32_t phase = kNone;
  int64_t random_draws = kNone;   // >= 0: a random op that advances the generator by this many 32-bit draws
  int64_t random_offset = kNone;  // draws of the micro-batch before this node
  Normals normals;                // normal numbers drawn one at a time; random_draws does not include their draws
  bool draws_vary = false;        // the number of draws depends on values, so it may differ from random_draws
  int64_t time_ns = 0;            // measured while capturing
  std::string source;             // "train.py:88", the user's innermost frame
  std::string scope;              // "encoder/layer.3", module path or NameScope

  bool isRandom() const { return random_draws > 0 || normals.count > 0 || draws_vary; }
  /// Compares all fields except time_ns, which is a measurement and not part of the program.
  bool operator==(const Node& other) const;
};

/// The role of a graph input.
enum class InputKind : uint8_t {
  kArgument,  // a batch input of the user's call; external = index among the tensor arguments
  kParameter,
  kBuffer,
  kConstant,     // external = index into Graph::externals
  kAccumulator,  // gradient sum of a parameter
  kState,        // optimizer state
};
struct Input {
  ValueId value = kNone;
  InputKind kind = InputKind::kArgument;
  int32_t external = kNone;
  int32_t dim = kNone;  // not kNone: a copy of a range of the external along this dimension, as long as the value
  int64_t begin = 0;    // where the range begins
  bool operator==(const Input&) const = default;
};

/// A graph input that outlives the micro-batch.
struct External {
  std::string name;  // "encoder.layer.0.weight", "exp_avg/encoder...", "constant/train.py:12"
  InputKind kind = InputKind::kConstant;
  Type type;
  int32_t owner = kNone;   // accumulator, state: the parameter's external index
  double initial = 0;      // accumulator, state: fill value
  bool trainable = false;  // for a parameter: it gets a gradient
  bool operator==(const External&) const = default;
};

enum class OutputKind : uint8_t {
  kResult,    // target = index of the flattened result of forward
  kLoss,      // the loss itself; target unused
  kGradient,  // d(loss)/d(parameter); target = external index. Replaced by accumulate nodes in lower-optimizer
  kUpdate,    // new contents of an external; target = external index
};
struct Output {
  ValueId value = kNone;
  OutputKind kind = OutputKind::kResult;
  int32_t target = kNone;
  bool operator==(const Output&) const = default;
};

/// A block that the user marked, in order of first entry. Entry 0 is the implicit code before the first block.
struct Block {
  std::string user_id;
  int32_t ipu_id = kNone;
  std::string source;
  std::vector<int32_t> group = {};  // several devices that share its work, from ipu_id on; empty: one device
  bool operator==(const Block&) const = default;
};

/// Filled in by assign-stages.
struct Stage {
  int32_t device = 0;  // the device; before pass shard, the first device of `group`
  std::string name;
  int32_t space = 0;  // the memory in which the device computes; transfers copy values between spaces
  /// Set by shard: the pipeline stage of which this stage is a part. Schedules run all parts of a pipeline stage
  /// together.
  int32_t pipeline = kNone;
  std::vector<int32_t> group = {};  // several devices that share its work; empty: one device
  bool isDivided() const { return !group.empty(); }
  bool operator==(const Stage&) const = default;
};

struct Graph {
  std::string name = "main";
  bool training = false;
  std::vector<Value> values;  // by id; a removed value stays as an undefined base that nothing uses
  std::vector<Node> nodes;    // in execution order; Node::id counts the order of creation and is not an index here
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<External> externals;
  std::vector<Block> blocks;
  std::vector<Stage> stages;
  int64_t random_draws = 0;  // per micro-batch
  Normals normals;           // per micro-batch
  NodeId node_id_limit = 0;  // every node made by addNode has a smaller id; not part of the program

  ValueId addValue(Type type, NodeId def);
  ValueId addView(Type type, NodeId def, ValueId base, int64_t offset);
  ValueId addInput(Type type, InputKind kind, int32_t external, std::string name);
  Node& addNode(std::string op);  // appends a node with a new id
  NodeId nextNodeId() const;
  NodeId takeNodeId() { return (node_id_limit = nextNodeId() + 1) - 1; }
  ValueId baseOf(ValueId v) const { return values[v].base; }
  /// Compares all fields except node_id_limit.
  bool operator==(const Graph& other) const;
};

/// Calls fn(ValueId) for every value a node reads (list elements too; absent ones are left out).
template <class Fn>
void forEachOperand(const Node& node, Fn&& fn) {
  for (const Arg& arg : node.args) forEachId(arg, [&](int64_t id) { fn(static_cast<ValueId>(id)); });
}
/// Calls fn(ValueId) for every value a node makes: results and the `after` of its writes.
template <class Fn>
void forEachResult(const Node& node, Fn&& fn) {
  for (const auto& group : node.results)
    for (ValueId v : group)
      if (v >= 0) fn(v);
  for (const Write& w : node.writes)
    if (w.after >= 0) fn(w.after);
}

/// Whether `to` is computed from `from` through any chain of nodes and views. Used to find the loss.
bool reaches(const Graph& graph, ValueId from, ValueId to);

}  // namespace abele::ir
