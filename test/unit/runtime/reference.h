// A step in its simplest form: micro-batch after micro-batch, node after node, every value in its own memory, in the
// symbolic contents of the null device. Replicas take turns in every micro-batch. They share values that only updates
// write.
#pragma once

#include <map>
#include <vector>

#include "device/null/symbolic.h"
#include "ir/graph.h"

namespace abele::test {

using device::Bytes;
using device::Symbol;

class Reference {
 public:
  Reference(const ir::Graph& graph, int64_t device_iterations, int64_t accumulation, int replicas = 1)
      : graph_(graph), device_iterations_(device_iterations), accumulation_(accumulation), replicas_(replicas) {
    size_t results = 0;
    for (const ir::Output& out : graph.outputs)
      if (out.kind == ir::OutputKind::kResult) results = std::max<size_t>(results, out.target + 1);
    outputs.assign(replicas * results, std::vector<Bytes>(device_iterations * accumulation));
    externals.resize(graph.externals.size());
    for (size_t e = 0; e < graph.externals.size(); ++e)
      externals[e] = Symbol(cat("external/", e)).contents(0, span(graph.externals[e].type));
    own.assign(replicas, externals);
  }

  /// arguments: [replica * arguments + argument][micro-batch].
  void step(const std::vector<std::vector<Bytes>>& arguments) {
    const size_t num_arguments = arguments.size() / replicas_, num_results = outputs.size() / replicas_;
    for (int64_t k = 0; k < device_iterations_ * accumulation_; ++k) {
      for (int r = replicas_ - 1; r >= 0; --r) {  // values of replica 0 stay for the update
        values_.clear();
        for (const ir::Input& in : graph_.inputs)
          values_[in.value] = in.kind == ir::InputKind::kArgument ? arguments[r * num_arguments + in.external][k]
                                                                  : external(in.external, r);
        for (const ir::Node& node : graph_.nodes)
          if (node.direction != ir::Direction::kUpdate) run(node, k, r);
        storeUpdates(/*after_group=*/false, r);
        for (const ir::Output& out : graph_.outputs)
          if (out.kind == ir::OutputKind::kResult) outputs[r * num_results + out.target][k] = read(out.value);
      }
      if ((k + 1) % accumulation_ != 0) continue;
      addSums();
      for (const ir::Node& node : graph_.nodes)
        if (node.direction == ir::Direction::kUpdate) run(node, k, 0);
      storeUpdates(/*after_group=*/true, 0);
    }
  }

  /// An external as replica r sees it.
  Bytes& external(int32_t e, int r) {
    const ir::InputKind kind = graph_.externals[e].kind;
    const bool is_own = kind == ir::InputKind::kAccumulator || kind == ir::InputKind::kBuffer;
    return is_own && r > 0 ? own[r][e] : externals[e];
  }

  std::vector<Bytes> externals;             // replica 0's; all contiguous, so memory order is logical order
  std::vector<std::vector<Bytes>> own;      // by replica; without shared externals
  std::vector<std::vector<Bytes>> outputs;  // by replica and target, and micro-batch

 private:
  static int64_t span(const Type& type) { return type.extentBytes(); }

  Bytes readAt(ir::ValueId base, int64_t offset, const Type& type) const {
    return device::gather(values_.at(base).data() + offset * elementBytes(type.dtype), type);
  }
  Bytes read(ir::ValueId v) const { return readAt(graph_.baseOf(v), graph_.values[v].offset, graph_.values[v].type); }

  static void store(Bytes& memory, int64_t offset, const Type& type, const Bytes& contents) {
    device::scatter(memory.data() + offset * elementBytes(type.dtype), type, contents);
  }

  // Adds the sums of all replicas to replica 0's, where its updates read them.
  void addSums() {
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kUpdate || graph_.externals[out.target].kind != ir::InputKind::kAccumulator)
        continue;
      Bytes& sum = values_.at(out.value);
      for (int r = 1; r < replicas_; ++r) {
        Symbol symbol("abele::add");
        for (const Bytes* term : {&sum, &own[r][out.target]}) {
          symbol.mixConstants(Arg::id(0));
          symbol.mix(*term);
        }
        sum = symbol.contents(0, static_cast<int64_t>(sum.size()));
      }
    }
  }

  void run(const ir::Node& node, int64_t k, int replica) {
    if (node.is_view) return;
    Symbol symbol(node.op);
    auto mixOperand = [&](size_t arg, int element, int64_t id) {
      for (const ir::Write& w : node.writes)
        if (w.arg == static_cast<int32_t>(arg) && w.element == element) return symbol.mix(readAt(id, w.offset, w.view));
      symbol.mix(read(static_cast<ir::ValueId>(id)));
    };
    for (size_t a = 0; a < node.args.size(); ++a) {
      const Arg& arg = node.args[a];
      symbol.mixConstants(arg);
      if (node.op == "abele::accumulate" && k % accumulation_ == 0 && a == 0) continue;
      if (arg.kind == Arg::Kind::kId && arg.i >= 0) mixOperand(a, ir::kNone, arg.i);
      if (arg.kind == Arg::Kind::kIdList)
        for (size_t i = 0; i < arg.ints.size(); ++i) mixOperand(a, static_cast<int>(i), arg.ints[i]);
    }
    if (node.random_draws >= 0) {
      const int64_t at = k * replicas_ + replica;
      symbol.mix(node.random_offset + at * graph_.random_draws);
      if (graph_.normals.count > 0) symbol.mix(node.normals.before + at * graph_.normals.count);
    }
    int64_t which = 0;
    auto contentsOf = [&](const Type& type) { return symbol.contents(which, type.numel() * elementBytes(type.dtype)); };
    for (const ir::Write& w : node.writes) {
      Bytes memory = values_.at(w.before);
      store(memory, w.offset, w.view, contentsOf(w.view));
      values_[w.after] = std::move(memory);
      ++which;
    }
    for (const auto& group : node.results)
      for (ir::ValueId v : group) {
        if (v >= 0) {
          Bytes memory(static_cast<size_t>(span(graph_.values[v].type)));
          store(memory, 0, graph_.values[v].type, contentsOf(graph_.values[v].type));
          values_[v] = std::move(memory);
        }
        ++which;
      }
  }

  void storeUpdates(bool after_group, int replica) {
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kUpdate) continue;
      for (const ir::Node& node : graph_.nodes)
        forEachResult(node, [&](ir::ValueId v) {
          if (v == out.value && (node.direction == ir::Direction::kUpdate) == after_group)
            external(out.target, replica) = values_.at(v);
        });
    }
  }

  const ir::Graph& graph_;
  int64_t device_iterations_, accumulation_;
  int replicas_;
  std::map<ir::ValueId, Bytes> values_;  // memory by base value, of the micro-batch
};

}  // namespace abele::test
