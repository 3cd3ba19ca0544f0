// Runs the nodes of a graph one by one, with ATen's kernels for one device. Used by subgraph.cc and by compile/.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "ir/graph.h"

namespace abele::operators {

/// The values of one run.
class GraphRun {
 public:
  /// generator: for nodes that draw. Both must outlive the run. device: of the tensors that keep() gets.
  GraphRun(const ir::Graph& graph, const std::optional<at::Generator>& generator, c10::Device device = at::kCPU)
      : graph_(graph), generator_(generator), device_(device), values_(graph.values.size()) {}

  /// A value that was passed to keep(), or a view of one.
  at::Tensor at(int64_t id) const;
  /// Gives a base value its contents; does nothing for a view, which has them already, and for kNone. The contents are
  /// copied if their strides are not the graph's.
  void keep(ir::ValueId id, const at::Tensor& contents);
  /// Does the work of a node that is not a view. op: kernels::findOperator(node.op).
  void call(const ir::Node& node, const c10::OperatorHandle& op);
  /// Whether all values passed to keep() had the types and strides of the graph.
  bool hasTypesOfGraph() const { return has_types_of_graph_; }

 private:
  c10::IValue operand(const Arg& arg, const c10::Argument& parameter) const;

  const ir::Graph& graph_;
  const std::optional<at::Generator>& generator_;
  const c10::Device device_;
  std::vector<at::Tensor> values_;  // by base value
  bool has_types_of_graph_ = true;
};

}  // namespace abele::operators
