#include "operators/subgraph.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set.h>

#include "base/error.h"
#include "base/fork.h"
#include "ir/graph.h"
#include "ir/text.h"
#include "kernels/constants.h"
#include "kernels/operator_lookup.h"

namespace abele::operators {
namespace {

const c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

/// The region that (type, offset) describes in a base value's memory; offset counts elements of type.
at::Tensor regionOf(const at::Tensor& base, const Type& type, int64_t offset) {
  at::Tensor region = at::empty({0}, at::TensorOptions().dtype(static_cast<at::ScalarType>(type.dtype)));
  const int64_t begin = base.storage_offset() * base.itemsize() / region.itemsize() + offset;
  return region.set_(base.storage(), begin, type.sizes, type.strides);
}

/// A copy with the same geometry, gaps included.
at::Tensor copyOf(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.clone();
  at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  const Type type{static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec()};
  copy.as_strided({type.extent()}, {1}).copy_(tensor.as_strided({type.extent()}, {1}));
  return copy;
}

}  // namespace

struct Subgraph::Impl {
  ir::Graph graph;
  std::vector<c10::OperatorHandle> ops;  // operator of each node

  /// The values of one run, by base value.
  struct Run {
    const ir::Graph& graph;
    std::vector<at::Tensor> values;
    const std::optional<at::Generator>& generator;

    at::Tensor at(int64_t id) const {
      const ir::Value& value = graph.values[id];
      const at::Tensor& base = values[value.base];
      return value.base == id ? base : regionOf(base, value.type, value.offset);
    }

    void keep(ir::ValueId id, const at::Tensor& result) {
      if (id < 0 || graph.values[id].base != id) return;  // not used, or a view
      const Type& type = graph.values[id].type;
      if (result.strides() == at::IntArrayRef(type.strides)) {
        values[id] = result;
        return;
      }
      values[id] = at::empty_strided(type.sizes, type.strides, result.options());
      values[id].copy_(result);
    }

    c10::IValue operand(const Arg& arg, const c10::Argument& parameter) const {
      switch (arg.kind) {
        case Arg::Kind::kId:
          if (arg.i >= 0) return at(arg.i);
          return parameter.type()->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
        case Arg::Kind::kIdList: {
          c10::List<at::Tensor> list;
          for (const int64_t id : arg.ints) list.push_back(id < 0 ? at::Tensor() : at(id));
          return list;
        }
        case Arg::Kind::kOptionalIdList: {
          c10::List<std::optional<at::Tensor>> list;
          for (const int64_t id : arg.ints) list.push_back(id < 0 ? std::nullopt : std::optional<at::Tensor>(at(id)));
          return list;
        }
        case Arg::Kind::kGenerator: return generator ? c10::IValue(*generator) : c10::IValue();
        default: return kernels::constantValue(arg, parameter);
      }
    }

    void call(const ir::Node& node, const c10::OperatorHandle& op) {
      torch::jit::Stack stack;
      for (size_t i = 0; i < node.args.size(); ++i) stack.push_back(operand(node.args[i], op.schema().arguments()[i]));
      for (const ir::Write& write : node.writes) {
        values[write.after] = copyOf(values[write.before]);
        const at::Tensor region = regionOf(values[write.after], write.view, write.offset);
        if (write.element < 0)
          stack[write.arg] = region;
        else if (stack[write.arg].isTensorList())
          stack[write.arg].toTensorList().set(write.element, region);
        else
          ABELE_CHECK(false, node.op, " writes into an optional tensor");
      }
      op.redispatchBoxed(kCpu, &stack);
      for (size_t r = 0; r < node.results.size(); ++r) {
        const auto& ids = node.results[r];
        if (stack[r].isTensor() && !ids.empty() && ids[0] >= 0) keep(ids[0], stack[r].toTensor());
        if (!stack[r].isTensorList()) continue;
        for (size_t e = 0; e < ids.size(); ++e)
          if (ids[e] >= 0) keep(ids[e], stack[r].toTensorList().get(e));
      }
    }
  };
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
  Impl::Run run{graph, std::vector<at::Tensor>(graph.values.size()), generator};
  for (const ir::Input& input : graph.inputs) {
    const bool is_argument = input.kind == ir::InputKind::kArgument;
    run.values[input.value] = operands[input.external + (is_argument ? 0 : num_arguments)];
    const Type& type = graph.values[input.value].type;
    if (run.values[input.value].strides() != at::IntArrayRef(type.strides)) {
      const at::Tensor given = run.values[input.value];
      run.values[input.value] = at::empty_strided(type.sizes, type.strides, given.options()).copy_(given);
    }
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (!graph.nodes[i].is_view) run.call(graph.nodes[i], impl_->ops[i]);
  std::vector<at::Tensor> results(graph.outputs.size());
  for (const ir::Output& output : graph.outputs)
    results.at(output.target) = run.at(output.value).clone(at::MemoryFormat::Contiguous);
  return results;
}

}  // namespace abele::operators
