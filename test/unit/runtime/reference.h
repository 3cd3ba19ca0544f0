// What a step must do, said as simply as possible: micro-batch after micro-batch, node after node, every value with
// memory of its own, in the symbolic contents of the null device.
#pragma once

#include <map>
#include <vector>

#include "ir/graph.h"
#include "runtime/device/null/symbolic.h"

namespace abele::test {

using runtime::Bytes;
using runtime::Symbol;

class Reference {
 public:
  Reference(const ir::Graph& graph, int64_t device_iterations, int64_t accumulation)
      : graph_(graph), device_iterations_(device_iterations), accumulation_(accumulation) {
    size_t results = 0;
    for (const ir::Output& out : graph.outputs)
      if (out.kind == ir::OutputKind::kResult) results = std::max<size_t>(results, out.target + 1);
    outputs.assign(results, std::vector<Bytes>(device_iterations * accumulation));
    externals.resize(graph.externals.size());
    for (size_t e = 0; e < graph.externals.size(); ++e)
      externals[e] = Symbol(cat("external/", e)).contents(0, span(graph.externals[e].type));
  }

  void step(const std::vector<std::vector<Bytes>>& arguments) {
    for (int64_t k = 0; k < device_iterations_ * accumulation_; ++k) {
      values_.clear();
      for (const ir::Input& in : graph_.inputs)
        values_[in.value] = in.kind == ir::InputKind::kArgument ? arguments[in.external][k] : externals[in.external];
      for (const ir::Node& node : graph_.nodes)
        if (node.direction != ir::Direction::kUpdate) run(node, k);
      storeUpdates(/*after_group=*/false);
      for (const ir::Output& out : graph_.outputs)
        if (out.kind == ir::OutputKind::kResult) outputs[out.target][k] = read(out.value);
      if ((k + 1) % accumulation_ != 0) continue;
      for (const ir::Node& node : graph_.nodes)
        if (node.direction == ir::Direction::kUpdate) run(node, k);
      storeUpdates(/*after_group=*/true);
    }
  }

  std::vector<Bytes> externals;             // all contiguous: memory order is logical order
  std::vector<std::vector<Bytes>> outputs;  // by target and micro-batch

 private:
  static int64_t span(const Type& type) { return type.extentBytes(); }

  Bytes readAt(ir::ValueId base, int64_t offset, const Type& type) const {
    return runtime::gather(values_.at(base).data() + offset * elementBytes(type.dtype), type);
  }
  Bytes read(ir::ValueId v) const { return readAt(graph_.baseOf(v), graph_.values[v].offset, graph_.values[v].type); }

  static void store(Bytes& memory, int64_t offset, const Type& type, const Bytes& contents) {
    runtime::scatter(memory.data() + offset * elementBytes(type.dtype), type, contents);
  }

  void run(const ir::Node& node, int64_t k) {
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
    if (node.random_draws >= 0) symbol.mix(node.random_offset + k * graph_.random_draws);
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

  void storeUpdates(bool after_group) {
    for (const ir::Output& out : graph_.outputs) {
      if (out.kind != ir::OutputKind::kUpdate) continue;
      for (const ir::Node& node : graph_.nodes)
        forEachResult(node, [&](ir::ValueId v) {
          if (v == out.value && (node.direction == ir::Direction::kUpdate) == after_group)
            externals[out.target] = values_.at(v);
        });
    }
  }

  const ir::Graph& graph_;
  int64_t device_iterations_, accumulation_;
  std::map<ir::ValueId, Bytes> values_;  // memory by base value, of the micro-batch
};

}  // namespace abele::test
