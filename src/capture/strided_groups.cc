// Group normalisation of channels that lie apart (PopTorch's groupNormStridedChannelGrouping). Part of rewrites.h.
// Group g of G has the channels g, g + G, g + 2 G, ...: channels are permuted so that those of a group are neighbours,
// which is what torch's operators know, and results back.
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include "capture/rewrites.h"

namespace abele::capture {

bool Rewrites::recordWithStridedGroups(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool is_backward = position_.op_name == "aten::native_group_norm_backward";
  if (!strides_groups_ || permutes_groups_ || (!is_backward && position_.op_name != "aten::native_group_norm"))
    return false;
  const at::Tensor input = argumentAt(op, *stack, is_backward ? 1 : 0).toTensor();
  const int64_t groups = argumentAt(op, *stack, is_backward ? 8 : 6).toInt();
  const int64_t in_group = input.size(1) / groups;
  permutes_groups_ = true;
  const auto permuted = c10::make_scope_exit([this] { permutes_groups_ = false; });
  permuteChannels(argumentAt(op, *stack, 0), 1, in_group);
  if (is_backward) permuteChannels(argumentAt(op, *stack, 1), 1, in_group);
  permuteChannels(argumentAt(op, *stack, is_backward ? 4 : 1), 0, in_group);
  if (!is_backward) permuteChannels(argumentAt(op, *stack, 2), 0, in_group);
  record_(op, stack);
  permuteChannels((*stack)[stack->size() - 3], 1, groups);
  for (size_t i = stack->size() - 2; is_backward && i < stack->size(); ++i) permuteChannels((*stack)[i], 0, groups);
  return true;
}

/// Treats the dimension as a matrix of `rows` rows, and replaces the tensor by one with this matrix column by column.
void Rewrites::permuteChannels(c10::IValue& tensor, size_t dim, int64_t rows) {
  if (!tensor.isTensor() || !tensor.toTensor().defined()) return;
  const auto named = [](const char* name, const char* overload) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  };
  static const c10::OperatorHandle view = named("aten::view", ""), transpose = named("aten::transpose", "int"),
                                   clone = named("aten::clone", "");
  const auto record = [&](const c10::OperatorHandle& op, torch::jit::Stack arguments) {
    record_(op, &arguments);
    return arguments.back();
  };
  const at::Tensor given = tensor.toTensor();
  const std::vector<int64_t> sizes = given.sizes().vec();
  std::vector<int64_t> split = sizes;
  split[dim] = rows;
  split.insert(split.begin() + static_cast<std::ptrdiff_t>(dim) + 1, sizes[dim] / rows);
  const auto place = static_cast<int64_t>(dim);
  const c10::IValue columns = record(transpose, {record(view, {given, split}), place, place + 1});
  tensor = record(view, {record(clone, {columns, at::MemoryFormat::Contiguous}), sizes});
  const at::MemoryFormat format = given.suggest_memory_format();
  if (dim == 1 && format != at::MemoryFormat::Contiguous) tensor = record(clone, {tensor, format});
}

}  // namespace abele::capture
