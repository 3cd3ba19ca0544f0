#include "kernels/operator_forms.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <torch/library.h>

#include "base/cat.h"

namespace abele::kernels {
namespace {

constexpr std::string_view kFormNamespace = "abele_math_bits";

void callWithMathBits(const c10::OperatorHandle& form, torch::jit::Stack* stack) {
  const c10::OperatorName& name = form.operator_name();
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(
      cat("aten", name.name.substr(kFormNamespace.size())).c_str(), name.overload_name.c_str());
  auto bits = static_cast<uint64_t>(torch::jit::pop(*stack).toInt());
  for (size_t i = stack->size() - op.schema().arguments().size(); bits != 0; ++i, bits >>= 2) {
    if ((bits & 1) != 0) (*stack)[i] = at::_conj((*stack)[i].toTensor());
    if ((bits & 2) != 0) (*stack)[i] = at::_neg_view((*stack)[i].toTensor());
  }
  op.callBoxed(stack);
  const auto& returns = op.schema().returns();
  for (size_t i = 0; i < returns.size(); ++i) {  // two conjugated operands may make a conjugated result
    c10::IValue& result = (*stack)[stack->size() - returns.size() + i];
    if (result.isTensor() && returns[i].alias_info() == nullptr)
      result = result.toTensor().resolve_conj().resolve_neg();
  }
}

/// Returns true if a program may hold the operator as a node that computes: views and torch's compositions are not.
bool hasForm(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return op.operator_name().name.starts_with("aten::") && !op.hasTag(at::Tag::inplace_view) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         std::ranges::none_of(returns, [](const c10::Argument& result) {
           return result.alias_info() != nullptr && !result.alias_info()->isWrite();
         });
}

void addForm(torch::Library& library, const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string form = cat(kFormNamespace, schema.name().substr(schema.name().find("::")));
  if (c10::Dispatcher::singleton().findSchema({form, schema.overload_name()})) return;  // it looks at both bits
  std::vector<c10::Argument> arguments = schema.arguments();
  arguments.emplace_back("math_bits", c10::IntType::get(), std::nullopt, std::nullopt, /*kwarg_only=*/true);
  library.def(c10::FunctionSchema(form, schema.overload_name(), std::move(arguments), schema.returns()));
  library.impl(c10::toString(c10::OperatorName(form, schema.overload_name())).c_str(),
               c10::DispatchKey::CompositeExplicitAutograd,
               torch::CppFunction::makeFromBoxedFunction<&callWithMathBits>());
}

/// An operator that looks at the bits itself has an entry of its own for them in torch's dispatcher, one that does
/// nothing. All others get operands that the dispatcher has computed.
torch::Library makeMathBitsLibrary() {
  torch::Library library(torch::Library::FRAGMENT, std::string(kFormNamespace), std::nullopt, __FILE__, __LINE__);
  for (const c10::DispatchKey bit : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(bit))
      if (const auto op = c10::Dispatcher::singleton().findSchema(name); op && hasForm(*op)) addForm(library, *op);
  return library;
}

}  // namespace

void registerMathBitsOperators() { static const torch::Library library = makeMathBitsLibrary(); }

}  // namespace abele::kernels
