// Seeded random staged graphs: forward chain with skips, views, in-place writes, running statistics, random ops, tied
// parameters, a backward, gradient sums and updates.
#pragma once

#include <random>
#include <vector>

#include "base/cat.h"
#include "ir/graph.h"

namespace abele::test {

class RandomStagedGraph {
 public:
  /// sequential: several stages may write a buffer. updates_at_sums: each update runs in the stage of its gradient, as
  /// lowering places it. alike: micro-batches leave only gradient sums behind.
  RandomStagedGraph(uint64_t seed, bool training, bool sequential = false, bool updates_at_sums = false,
                    bool alike = false)
      : random_(seed), training_(training), sequential_(sequential), updates_at_sums_(updates_at_sums), alike_(alike) {}

  ir::Graph make() {
    graph_.training = training_;
    num_stages_ = 1 + pick(5);
    const int devices = 1 + pick(num_stages_);
    const int parts = chance(2) ? 1 + pick(3) : 1;  // stages that the schedule runs together
    for (int s = 0; s < num_stages_; ++s)
      graph_.stages.push_back(
          {.device = pick(devices), .name = cat("stage", s), .pipeline = parts > 1 ? s / parts : ir::kNone});
    for (int a = 0; a < 2; ++a) forward_.push_back({addInput(ir::InputKind::kArgument, a, cat("x", a)), 0});
    for (int p = 0; p < num_stages_ + 1; ++p)
      parameters_.push_back(addExternal(ir::InputKind::kParameter, cat("w", p)));
    for (int s = 0; s < num_stages_; ++s) makeForward(s);
    if (shared_external_ >= 0) graph_.outputs.push_back({shared_, ir::OutputKind::kUpdate, shared_external_});
    if (training_) {
      for (int s = num_stages_ - 1; s >= 0; --s) makeBackward(s);
      makeUpdates();
    }
    for (const Made& m : forward_)
      if (chance(8)) addResult(m.value);
    addResult(forward_.back().value);
    addResult(parameters_[0]);
    return std::move(graph_);
  }

 private:
  struct Made {
    ir::ValueId value;
    int stage;
  };

  int pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool chance(int one_in) { return pick(one_in) == 0; }
  Type someType() {
    static constexpr int64_t kSizes[] = {4, 8, 24, 40};
    return contiguousType(DType::kFloat32, {kSizes[pick(4)]});
  }

  ir::ValueId addInput(ir::InputKind kind, int32_t external, std::string name) {
    return graph_.addInput(kind == ir::InputKind::kArgument ? someType() : graph_.externals[external].type, kind,
                           external, name);
  }
  ir::ValueId addExternal(ir::InputKind kind, const std::string& name) {
    graph_.externals.push_back({.name = name, .kind = kind, .type = someType()});
    return addInput(kind, static_cast<int32_t>(graph_.externals.size() - 1), name);
  }
  void addResult(ir::ValueId v) { graph_.outputs.push_back({v, ir::OutputKind::kResult, results_++}); }
  int32_t externalOf(ir::ValueId v) const {
    for (const ir::Input& in : graph_.inputs)
      if (in.value == v) return in.external;
    return -1;
  }

  ir::Node& addNode(std::string op, int stage, ir::Direction direction) {
    ir::Node& node = graph_.addNode(std::move(op));
    node.stage = stage;
    node.direction = direction;
    node.source = cat("model.py:", node.id);
    return node;
  }

  ir::ValueId viewOf(ir::ValueId v, int stage, ir::Direction direction) {
    const ir::Value value = graph_.values[v];
    const int64_t n = value.type.numel();
    Type type = contiguousType(DType::kFloat32, {n / 2});
    if (chance(2)) type.strides = {2};  // every other element
    const int64_t offset = value.offset + (type.strides[0] == 1 ? n / 2 : 1);
    if (n < 2 || !value.type.isContiguous()) return v;
    ir::Node& node = addNode("t::view", stage, direction);
    node.is_view = true;
    node.args = {Arg::id(v)};
    const ir::ValueId view = graph_.addView(type, node.id, graph_.baseOf(v), offset);
    graph_.nodes.back().results = {{view}};
    return view;
  }

  ir::ValueId operand(const std::vector<Made>& from, int stage, ir::Direction direction) {
    // Prefers recent values, so that others die.
    const int n = static_cast<int>(from.size());
    ir::ValueId v = from[chance(3) ? pick(n) : n - 1 - pick(std::min(n, 4))].value;
    return chance(4) ? viewOf(v, stage, direction) : v;
  }

  // Adds an op with one to three operands, a constant, sometimes a list, and two results (one may stay unused).
  void addCompute(std::vector<Made>& values, int stage, ir::Direction direction, const std::vector<Made>& from) {
    std::vector<ir::ValueId> operands;
    for (int i = 0, n = 1 + pick(3); i < n; ++i) operands.push_back(operand(from, stage, direction));
    ir::Node& node = addNode(cat("t::op", pick(3)), stage, direction);
    const ir::NodeId id = node.id;
    for (ir::ValueId v : operands) node.args.push_back(Arg::id(v));
    node.args.push_back(Arg::integer(pick(9)));
    if (chance(4)) node.args.push_back(Arg::idList({operands.front(), operands.back()}));
    if (!alike_ && chance(6)) {
      node.random_draws = 4;
      node.random_offset = graph_.random_draws;
      graph_.random_draws += 4;
      node.normals.before = graph_.normals.count;
      if (id % 2 == 0) graph_.normals.count += node.normals.count = 1 + id % 3;
    }
    const ir::ValueId first = graph_.addValue(someType(), id), second = graph_.addValue(someType(), id);
    graph_.nodes.back().results = {{first}, {chance(2) ? second : ir::kNone}};
    values.push_back({first, stage});
    if (graph_.nodes.back().results[1][0] >= 0 && chance(2)) values.push_back({second, stage});
  }

  // Writes a whole base value or half of it. Its previous content may be read again later.
  ir::ValueId addWrite(ir::ValueId before, int stage, ir::Direction direction, const std::string& op,
                       const std::vector<ir::ValueId>& others) {
    const Type whole = graph_.values[before].type;
    ir::Node& node = addNode(op, stage, direction);
    node.args = {Arg::id(before)};
    for (ir::ValueId v : others) node.args.push_back(Arg::id(v));
    ir::Write write{.arg = 0, .view = whole, .before = before};
    if (op == "t::write_" && chance(2)) {
      write.view = contiguousType(DType::kFloat32, {whole.numel() / 2});
      write.offset = whole.numel() / 2;
    }
    node.results = {{ir::kNone}};
    write.after = graph_.addValue(whole, node.id);
    graph_.nodes.back().writes = {write};
    return write.after;
  }

  void makeForward(int s) {
    const ir::Direction f = ir::Direction::kForward;
    ir::ValueId buffer = ir::kNone;
    for (int i = 0, n = 1 + pick(7); i < n; ++i) {
      std::vector<Made> from = forward_;
      if (chance(2)) from.push_back({parameters_[chance(4) ? pick(num_stages_ + 1) : s], s});
      if (chance(4)) {
        const ir::ValueId before =
            graph_.baseOf(forward_[forward_.size() - 1 - pick(std::min<int>(3, forward_.size()))].value);
        const ir::ValueId other = operand(from, s, f);
        forward_.push_back({addWrite(before, s, f, "t::write_", {other}), s});
      } else {
        addCompute(forward_, s, f, from);
      }
      if (!alike_ && chance(3)) buffer = updateBuffer(s, buffer);
    }
    if (sequential_ && chance(2)) writeShared(s);
    if (buffer >= 0 && chance(2)) forward_.push_back({buffer, s});  // backward may read it too
    if (buffer >= 0) graph_.outputs.push_back({buffer, ir::OutputKind::kUpdate, buffer_external_});
  }

  ir::ValueId updateBuffer(int s, ir::ValueId buffer) {
    if (buffer < 0) {
      buffer = addExternal(ir::InputKind::kBuffer, cat("running", s));
      buffer_external_ = externalOf(buffer);
    }
    return addWrite(buffer, s, ir::Direction::kForward, "t::statistics_",
                    {operand(forward_, s, ir::Direction::kForward)});
  }

  void writeShared(int s) {
    if (shared_ < 0) {
      shared_ = addExternal(ir::InputKind::kBuffer, "shared");
      shared_external_ = externalOf(shared_);
    }
    shared_ = addWrite(shared_, s, ir::Direction::kForward, "t::statistics_", {forward_.back().value});
    if (chance(2)) forward_.push_back({shared_, s});
  }

  void makeBackward(int s) {
    std::vector<Made> from = forward_;
    from.insert(from.end(), backward_.begin(), backward_.end());
    ir::Direction b = ir::Direction::kBackward;
    for (int i = 0, n = 1 + pick(6); i < n; ++i) {
      const size_t known = backward_.size();
      if (chance(5) && !backward_.empty()) {
        const ir::ValueId before = graph_.baseOf(backward_.back().value);
        const ir::ValueId other = operand(from, s, b);
        backward_.push_back({addWrite(before, s, b, "t::write_", {other}), s});
      } else {
        addCompute(backward_, s, b, from);
      }
      from.insert(from.end(), backward_.begin() + known, backward_.end());
    }
    const ir::ValueId accumulator = addExternal(ir::InputKind::kAccumulator, cat("grad", s));
    const ir::Direction where = chance(4) ? ir::Direction::kWeightGrad : b;
    const ir::ValueId gradient = addGradient(s, where, graph_.values[accumulator].type, operand(from, s, where));
    const ir::ValueId sum = addWrite(accumulator, s, where, "abele::accumulate", {gradient});
    graph_.outputs.push_back({sum, ir::OutputKind::kUpdate, externalOf(accumulator)});
    sums_.push_back({sum, s});
  }

  // Adds a node with the sum's type, like a gradient.
  ir::ValueId addGradient(int s, ir::Direction where, const Type& type, ir::ValueId from) {
    ir::Node& node = addNode("t::gradient", s, where);
    node.args = {Arg::id(from)};
    const ir::ValueId gradient = graph_.addValue(type, node.id);
    graph_.nodes.back().results = {{gradient}};
    return gradient;
  }

  void makeUpdates() {
    const ir::Direction u = ir::Direction::kUpdate;
    for (const Made& sum : sums_) {
      if (chance(6)) continue;  // a frozen parameter
      const int stage = !updates_at_sums_ && chance(5) ? pick(num_stages_) : sum.stage;
      const ir::ValueId parameter = parameters_[sum.stage],
                        state = addExternal(ir::InputKind::kState, cat("state", sum.stage));
      const ir::ValueId new_state = addWrite(state, stage, u, "t::momentum_", {sum.value});
      const ir::ValueId step = graph_.addValue(someType(), graph_.nextNodeId());
      addNode("t::direction", stage, u).args = {Arg::id(new_state), Arg::id(parameter)};
      graph_.nodes.back().results = {{step}};
      const ir::ValueId updated = addWrite(parameter, stage, u, "t::update_", {sum.value, step});
      graph_.outputs.push_back({new_state, ir::OutputKind::kUpdate, externalOf(state)});
      graph_.outputs.push_back({updated, ir::OutputKind::kUpdate, externalOf(parameter)});
    }
  }

  std::mt19937_64 random_;
  bool training_, sequential_, updates_at_sums_, alike_;
  ir::ValueId shared_ = ir::kNone;  // buffer of several stages
  int32_t shared_external_ = -1;
  ir::Graph graph_;
  int num_stages_ = 1;
  int32_t results_ = 0, buffer_external_ = -1;
  std::vector<ir::ValueId> parameters_;
  std::vector<Made> forward_, backward_, sums_;
};

}  // namespace abele::test
