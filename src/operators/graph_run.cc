#include "operators/graph_run.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set.h>

#include "base/error.h"
#include "kernels/constants.h"

namespace abele::operators {
namespace {

/// The region that (type, offset) describes in a base value's memory; offset counts elements of type.
at::Tensor regionOf(const at::Tensor& base, const Type& type, int64_t offset) {
  at::Tensor region = at::empty({0}, base.options().dtype(static_cast<at::ScalarType>(type.dtype)));
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

at::Tensor GraphRun::at(int64_t id) const {
  const ir::Value& value = graph_.values[id];
  const at::Tensor& base = values_[value.base];
  return value.base == id ? base : regionOf(base, value.type, value.offset);
}

void GraphRun::keep(ir::ValueId id, const at::Tensor& contents) {
  if (id < 0 || graph_.values[id].base != id) return;
  const Type& type = graph_.values[id].type;
  const bool has_strides = contents.strides() == at::IntArrayRef(type.strides);
  has_types_of_graph_ = has_types_of_graph_ && has_strides && contents.sizes() == at::IntArrayRef(type.sizes) &&
                        contents.scalar_type() == static_cast<at::ScalarType>(type.dtype);
  values_[id] =
      has_strides ? contents : at::empty_strided(type.sizes, type.strides, contents.options()).copy_(contents);
}

c10::IValue GraphRun::operand(const Arg& arg, const c10::Argument& parameter) const {
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
    case Arg::Kind::kGenerator: return generator_ ? c10::IValue(*generator_) : c10::IValue();
    case Arg::Kind::kDevice:
      if (!device_.is_cpu()) return device_;
      [[fallthrough]];
    default: return kernels::constantValue(arg, parameter);
  }
}

void GraphRun::call(const ir::Node& node, const c10::OperatorHandle& op) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < node.args.size(); ++i) stack.push_back(operand(node.args[i], op.schema().arguments()[i]));
  for (const ir::Write& write : node.writes) {
    values_[write.after] = copyOf(values_[write.before]);
    const at::Tensor region = regionOf(values_[write.after], write.view, write.offset);
    if (write.element < 0)
      stack[write.arg] = region;
    else if (stack[write.arg].isTensorList())
      stack[write.arg].toTensorList().set(write.element, region);
    else
      ABELE_CHECK(false, node.op, " writes into an optional tensor");
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::computeDispatchKey(at::kFloat, at::kStrided, device_)), &stack);
  for (size_t r = 0; r < node.results.size(); ++r) {
    const auto& ids = node.results[r];
    if (stack[r].isTensor() && !ids.empty() && ids[0] >= 0) keep(ids[0], stack[r].toTensor());
    if (!stack[r].isTensorList()) continue;
    for (size_t e = 0; e < ids.size(); ++e)
      if (ids[e] >= 0) keep(ids[e], stack[r].toTensorList().get(e));
  }
}

}  // namespace abele::operators
