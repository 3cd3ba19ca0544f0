#include "operators/subgraph.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "base/fork.h"
#include "ir/graph.h"
#include "ir/text.h"
#include "kernels/operator_lookup.h"
#include "operators/graph_run.h"

namespace abele::operators {

struct Subgraph::Impl {
  ir::Graph graph;
  std::vector<c10::OperatorHandle> ops;  // operator of each node
};

Subgraph::Subgraph(const std::string& text) : impl_(std::make_unique<Impl>()) {
  impl_->graph = ir::parse(text);
  for (const ir::Node& node : impl_->graph.nodes) impl_->ops.push_back(kernels::findOperator(node.op));
}
Subgraph::~Subgraph() = default;

std::shared_ptr<const Subgraph> Subgraph::of(const std::string& text) {
  static auto& mutex = *new ProcessMutex;
  static auto* known = new std::map<std::string, std::weak_ptr<const Subgraph>>();
  // Keeps the subgraphs that were used last alive, so that a program does not parse its bodies again in every
  // micro-batch.
  static auto* kept = new std::vector<std::shared_ptr<const Subgraph>>();
  constexpr size_t kKept = 64;
  std::lock_guard lock(mutex);
  auto& slot = (*known)[text];
  if (auto subgraph = slot.lock()) return subgraph;
  const std::shared_ptr<const Subgraph> made(new Subgraph(text));
  slot = made;
  if (kept->size() >= kKept) kept->erase(kept->begin());
  kept->push_back(made);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  return made;
}

capture::BodyDraws Subgraph::draws() const {
  const ir::Graph& graph = impl_->graph;
  const bool vary = std::ranges::any_of(graph.nodes, [](const ir::Node& node) { return node.draws_vary; });
  return {.draws = graph.random_draws, .normals = graph.normals, .vary = vary};
}

std::vector<at::Tensor> Subgraph::run(at::TensorList operands, const std::optional<at::Generator>& generator) const {
  const ir::Graph& graph = impl_->graph;
  const auto num_arguments = static_cast<int64_t>(operands.size() - graph.externals.size());
  GraphRun run(graph, generator);
  for (const ir::Input& input : graph.inputs) {
    const bool is_argument = input.kind == ir::InputKind::kArgument;
    run.keep(input.value, operands[input.external + (is_argument ? 0 : num_arguments)]);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (!graph.nodes[i].is_view) run.call(graph.nodes[i], impl_->ops[i]);
  std::vector<at::Tensor> results(graph.outputs.size());
  for (const ir::Output& output : graph.outputs)
    results.at(output.target) = run.at(output.value).clone(at::MemoryFormat::Contiguous);
  return results;
}

}  // namespace abele::operators
