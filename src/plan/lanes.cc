#include "plan/lanes.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/cat.h"
#include "base/instructions.h"
#include "base/lane_limits.h"
#include "plan/packing.h"

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

namespace {

class Sharing {
 public:
  explicit Sharing(const ir::Graph& graph)
      : graph_(graph), is_argument_(graph.values.size(), false), is_external_(graph.values.size(), false) {
    found_.varies.assign(graph.values.size(), false);
    found_.joins.assign(graph.nodes.size(), false);
    for (const ir::Input& in : graph.inputs) {
      const bool is_argument = in.kind == ir::InputKind::kArgument;
      is_argument_[in.value] = found_.varies[in.value] = is_argument;
      is_external_[in.value] = !is_argument;
    }
  }

  LaneSharing run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const ir::Node& node = graph_.nodes[i];
      if (node.is_view || node.direction == Direction::kUpdate) continue;
      bool reads = false;
      forEachOperand(node, [&](ValueId v) { reads = reads || varies(v); });
      for (const ir::Write& w : node.writes) is_external_[w.after] = is_external_[graph_.baseOf(w.before)];
      forEachResult(node, [&](ValueId v) { found_.varies[v] = reads && !is_external_[v]; });
      found_.joins[i] = reads && joins(node);
    }
    return std::move(found_);
  }

 private:
  bool varies(ValueId v) const { return found_.varies[graph_.baseOf(v)]; }

  bool joins(const ir::Node& node) const {
    if (hasTrait(node.op, kSums)) return addsAll(node);
    return node.op.starts_with("aten::") && followEachOther(node);
  }

  // The lanes of each operand and result lie one behind the other. As many rows come out as go in, since they are
  // alike; but for operators that make something else of the rows of each lane.
  bool followEachOther(const ir::Node& node) const {
    const bool makes_others = node.op == "aten::native_layer_norm_backward" || reducesRows(node);
    int64_t rows = -1;
    bool fits = true;
    const auto look = [&](ValueId v, const Type& type) {
      fits = fits && isOfNumbers(type.dtype) && leavesNoGap(type, laneBytes(v)) &&
             (rows < 0 || rows == type.sizes[0] || makes_others);
      if (fits) rows = type.sizes[0];
    };
    forEachOperand(node, [&](ValueId v) {
      if (varies(v)) look(v, graph_.values[v].type);
    });
    for (const auto& group : node.results)
      for (const ValueId v : group)
        if (v >= 0) look(v, graph_.values[v].type);
    for (const ir::Write& w : node.writes) {
      fits = fits && varies(w.after);
      look(w.after, w.view);
    }
    return fits;
  }

  bool reducesRows(const ir::Node& node) const {
    if (node.args.empty() || node.args[0].kind != Arg::Kind::kId || node.args[0].i < 0) return false;
    const Type& first = typeOf(node.args[0]);
    return plan::reducesRows(node.op, node.args, static_cast<int64_t>(first.sizes.size()));
  }

  // One pass over a sum takes the gradients of all lanes, wherever they lie.
  bool addsAll(const ir::Node& node) const {
    const Type &sum = typeOf(node.args.at(0)), &first = typeOf(node.args.at(1));
    const auto isPlain = [](const Type& type) { return type == contiguousType(DType::kFloat32, type.sizes); };
    if (ownOp(node.op) == OwnOp::kAccumulate) return isPlain(sum) && first == sum;
    if (ownOp(node.op) != OwnOp::kAccumulateProduct || (node.args.size() > 3 && node.args[3].i != 0)) return false;
    const Type& second = typeOf(node.args.at(2));
    const int64_t depth = second.sizes.at(0);
    return isPlain(sum) && first.dtype == sum.dtype && second.dtype == sum.dtype && second.strides.at(1) == 1 &&
           depth <= kMostLaneDepth && sum.numel() * depth <= kMostLaneWork;
  }

  const Type& typeOf(const Arg& arg) const { return graph_.values[static_cast<size_t>(arg.i)].type; }

  // From one lane to the next.
  int64_t laneBytes(ValueId v) const {
    const ValueId base = graph_.baseOf(v);
    const Type& type = graph_.values[base].type;
    if (is_argument_[base]) return type.isContiguous() ? type.extentBytes() : 0;
    return alignUp(type.extentBytes());
  }

  const ir::Graph& graph_;
  std::vector<bool> is_argument_, is_external_;  // by base value
  LaneSharing found_;
};

}  // namespace

bool reducesRows(std::string_view op, const std::vector<Arg>& args, int64_t rank) {
  // Operators of a tensor, and of the dimensions that they reduce; none: all.
  static constexpr std::array<std::string_view, 4> kReductions = {"aten::sum.dim_IntList", "aten::mean.dim",
                                                                  "aten::amax", "aten::amin"};
  if (std::ranges::find(kReductions, op) == kReductions.end() || args.size() < 2 || rank == 0) return false;
  const Arg& dims = args[1];
  if (dims.kind != Arg::Kind::kIntList && dims.kind != Arg::Kind::kNone) return false;
  return dims.ints.empty() || std::ranges::any_of(dims.ints, [&](int64_t dim) { return dim == 0 || dim == -rank; });
}

bool isOfNumbers(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat16 || dtype == DType::kBool;
}

int64_t rowStride(const Type& type) {
  return type.sizes[0] == 1 && type.isContiguous() ? type.numel() : type.strides[0];
}

bool leavesNoGap(const Type& type, int64_t lane_bytes) {
  return lane_bytes > 0 && !type.sizes.empty() && type.numel() > 0 &&
         rowStride(type) * type.sizes[0] * elementBytes(type.dtype) == lane_bytes;
}

LaneSharing sharingOfLanes(const ir::Graph& graph) { return Sharing(graph).run(); }

}  // namespace abele::plan
