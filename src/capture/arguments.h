// One argument of a boxed ATen call -> Arg. Used by the parts of recorder.h.
#pragma once

#include <optional>

#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include "base/arg.h"

namespace at {
class Tensor;
struct RecordFunction;
}  // namespace at
namespace c10 {
struct IValue;
struct Argument;
}  // namespace c10

namespace abele::capture {

/// Returns the Arg of a value that contains no tensor; std::nullopt for kinds that cannot be replayed (a Storage, ...).
/// Source: the types of ATen's schemas.
std::optional<Arg> plainArg(const c10::IValue& value);

/// Returns true for Tensor[], false for Tensor?[]. Requires: the argument is a list of tensors.
bool isTensorList(const c10::Argument& argument);
bool isOptionalTensorList(const c10::Argument& argument);
/// Calls fn(element index, tensor) for every defined tensor of a Tensor, Tensor[] or Tensor?[] argument; the index is
/// kNone (-1) outside a list.
void forEachTensor(const c10::IValue& value, c10::function_ref<void(int32_t, const at::Tensor&)> fn);
/// Calls fn(tensor) for every defined tensor of several arguments.
template <class Values, class Fn>
void forEachTensorOf(const Values& values, const Fn& fn) {
  for (const c10::IValue& value : values) forEachTensor(value, [&](int32_t, const at::Tensor& tensor) { fn(tensor); });
}

/// The operator's arguments, in a callback of RecordFunction that needs inputs.
c10::ArrayRef<const c10::IValue> inputsOf(const at::RecordFunction& function);

/// A 0-d tensor that stands for a Python number.
Arg numberArg(const at::Tensor& tensor);

}  // namespace abele::capture
