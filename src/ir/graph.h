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

/// Which part of a training step a node belongs to. kUpdate nodes run once per weight update, all others per
/// micro-batch.
enum class Direction : uint8_t { kForward, kBackward, kWeightGrad, kUpdate };

/// A tensor. A view has the memory of its base: base != its own id, and its elements start at offset (in elements of
/// its own dtype) from the base's first element. Views are never computed: (base, offset, type) says all.
struct Value {
  Type type;
  NodeId def = kNone;    // node that makes it; kNone for a graph input
  ValueId base = kNone;  // own id when it is no view
  int64_t offset = 0;
  std::string name;  // optional, for people
  bool operator==(const Value&) const = default;
};

/// An operand that the node updates in place. The graph stays SSA: `before` is the whole base value that goes in,
/// `after` the whole base value that comes out; the op itself sees the region (view, offset) of it. `before` keeps its
/// contents for other users: the plan copies it unless it dies here.
/// args[arg] (or its element) holds `before`.
struct Write {
  int32_t arg = 0;
  int32_t element = kNone;  // index inside a list argument
  Type view;                // what the op sees
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
                                              // (also: the returned alias of a written operand)
  std::vector<Write> writes;
  bool is_view = false;  // makes a view of an operand; no work at run time
  Direction direction = Direction::kForward;
  int32_t block = kNone;   // index into Graph::blocks; kNone = outside every block
  NodeId forward = kNone;  // of a backward node: the forward node whose gradient it makes. Ids ascend along forward,
                           // and the node may be gone. Known in graphs that are to be cut anywhere (AutoSplit)
  int32_t stage = kNone;   // set by assign-stages
  int32_t phase = kNone;
  int64_t random_draws = kNone;   // >= 0: a random op that advances the generator by so many 32-bit draws
  int64_t random_offset = kNone;  // draws of the micro-batch before this node
  Normals normals;                // drawn one at a time; their draws are not among random_draws
  bool draws_vary = false;        // may draw another number of them than this says: values decide
  int64_t time_ns = 0;            // measured while capturing
  std::string source;             // "train.py:88", the user's innermost frame
  std::string scope;              // "encoder/layer.3", module path or NameScope

  bool isRandom() const { return random_draws > 0 || normals.count > 0 || draws_vary; }
  /// All fields but time_ns, which is a measurement and no part of the program.
  bool operator==(const Node& other) const;
};

/// What a graph input is. Externals live longer than a micro-batch.
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
  bool operator==(const Input&) const = default;
};

/// Something stored outside the micro-batch.
struct External {
  std::string name;  // "encoder.layer.0.weight", "exp_avg/encoder...", "constant/train.py:12"
  InputKind kind = InputKind::kConstant;
  Type type;
  int32_t owner = kNone;   // accumulator, state: the parameter's external index
  double initial = 0;      // accumulator, state: fill value
  bool trainable = false;  // parameter: gets a gradient
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

/// What the user marked, in order of first entry. Entry 0 is the implicit code before the first block.
struct Block {
  std::string user_id;
  int32_t ipu_id = kNone;
  std::string source;
  bool operator==(const Block&) const = default;
};

/// Assigned by assign-stages.
struct Stage {
  int32_t device = 0;
  std::string name;
  int32_t space = 0;  // the memory that the device computes in; values go from one to another by transfers
  bool operator==(const Stage&) const = default;
};

struct Graph {
  std::string name = "main";
  bool training = false;
  std::vector<Value> values;  // by id; the place of a removed value stays, as an undefined base that nobody names
  std::vector<Node> nodes;    // in execution order; Node::id is the position in creation order, not here
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<External> externals;
  std::vector<Block> blocks;
  std::vector<Stage> stages;
  int64_t random_draws = 0;  // per micro-batch
  Normals normals;           // per micro-batch
  NodeId node_id_limit = 0;  // no node made by addNode has this id or a larger one; no part of the program

  ValueId addValue(Type type, NodeId def);
  ValueId addView(Type type, NodeId def, ValueId base, int64_t offset);
  ValueId addInput(Type type, InputKind kind, int32_t external, std::string name);
  Node& addNode(std::string op);  // appended; id set
  NodeId nextNodeId() const;
  ValueId baseOf(ValueId v) const { return values[v].base; }
  /// All fields but node_id_limit.
  bool operator==(const Graph& other) const;
};

/// Calls fn(ValueId) for every value a node reads (list elements too, absent ones left out).
template <class Fn>
void forEachOperand(const Node& node, Fn&& fn) {
  for (const Arg& a : node.args) {
    if (a.kind == Arg::Kind::kId && a.i >= 0) fn(static_cast<ValueId>(a.i));
    if (a.kind == Arg::Kind::kIdList || a.kind == Arg::Kind::kOptionalIdList)
      for (int64_t id : a.ints)
        if (id >= 0) fn(static_cast<ValueId>(id));
  }
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

/// Does a value computed from `from` (through any chain of nodes and views) reach `to`? Used by loss discovery.
bool reaches(const Graph& graph, ValueId from, ValueId to);

}  // namespace abele::ir
