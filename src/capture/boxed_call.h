// What a schema says about a boxed call of an operator. Used by the parts of recorder.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace abele::capture {

/// Runs an operator on a stack and records either it or the operators that it calls.
using RunOperator = std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)>;

/// "aten::mul.Tensor".
std::string fullName(const c10::OperatorHandle& op);
inline size_t numArguments(const c10::OperatorHandle& op) { return op.schema().arguments().size(); }
/// The arguments, while they are on the stack, and the n-th of them.
inline c10::ArrayRef<c10::IValue> argumentsOf(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return torch::jit::last(stack, numArguments(op));
}
inline const c10::IValue& argumentAt(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t index) {
  return stack[stack.size() - numArguments(op) + index];
}
inline c10::IValue& argumentAt(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t index) {
  return stack[stack.size() - numArguments(op) + index];
}
/// Index of the generator among the arguments, or -1.
int generatorArgument(const c10::OperatorHandle& op);
/// Whether the operator is resize_ or resize_as_.
bool isResize(const std::string& op);
/// Whether the operator only makes a view of an operand.
bool isViewOperator(const c10::OperatorHandle& op);
/// For each argument, whether the call writes into its memory, including the writes in hidden_writes.def. name:
/// fullName(op).
std::vector<bool> writtenArguments(const c10::OperatorHandle& op, const std::string& name,
                                   const torch::jit::Stack& stack);

}  // namespace abele::capture
