#include "capture/boxed_call.h"

#include <algorithm>

#include "base/cat.h"
#include "base/hidden_writes.h"

namespace abele::capture {

std::string fullName(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : cat(name.name, ".", name.overload_name);
}

int generatorArgument(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::TypePtr type = arguments[i].type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::GeneratorType) return static_cast<int>(i);
  }
  return -1;
}

bool isResize(const std::string& op) { return op == "aten::resize_" || op == "aten::resize_as_"; }

bool isViewOperator(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

std::vector<bool> writtenArguments(const c10::OperatorHandle& op, const std::string& name,
                                   const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  // transpose_ and its kin change what the tensor object looks at, not memory: views. Resizes may do both.
  const bool is_view = op.hasTag(at::Tag::inplace_view) && !isResize(op.operator_name().name);
  std::vector<bool> written;
  for (const c10::Argument& argument : arguments)
    written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite() && !is_view);
  const HiddenWrites* hidden = hiddenWrites(name);
  if (hidden == nullptr) return written;
  if (hidden->training_arg >= 0 && !argumentAt(op, stack, hidden->training_arg).toBool()) return written;
  for (const int index : hidden->args) written[index] = true;
  return written;
}

}  // namespace abele::capture
