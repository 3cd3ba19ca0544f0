#include "kernels/operator_lookup.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/error.h"

namespace abele::kernels {
namespace {

using Overloads = std::unordered_map<std::string, std::vector<c10::OperatorName>>;

// Whether the device has a kernel that writes into given tensors. A device with a single function for all operators has
// no entry in its table for this one. It still has a kernel, unless the operator is composed of others.
bool isNative(const c10::OperatorHandle& op, c10::DispatchKey device) {
  if (op.hasKernelForDispatchKey(device)) return true;
  return device != c10::DispatchKey::CPU && op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         op.hasComputedKernelForDispatchKey(device) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

// Overloads with a CPU kernel of their own, by operator name without overload. The CPU has all that other devices have.
const Overloads& overloadsOnCpu() {
  static const Overloads* overloads = [] {
    auto* table = new Overloads();
    for (const c10::OperatorName& name :
         c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(c10::DispatchKey::CPU))
      (*table)[name.name].push_back(name);
    return table;
  }();
  return *overloads;
}

bool isOutArgument(const c10::Argument& argument) {
  return argument.is_out() || (argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite());
}

bool isOutVariantOf(const c10::FunctionSchema& out, const c10::FunctionSchema& functional) {
  const auto& plain = functional.arguments();
  const auto& with_outs = out.arguments();
  const std::size_t num_outs = functional.returns().size();
  if (num_outs == 0 || with_outs.size() != plain.size() + num_outs) return false;
  for (std::size_t i = 0; i < with_outs.size(); ++i) {
    if (isOutArgument(with_outs[i]) != (i >= plain.size())) return false;
    if (i >= plain.size()) {
      if (with_outs[i].type()->kind() != c10::TypeKind::TensorType) return false;
    } else if (with_outs[i].name() != plain[i].name() || *with_outs[i].real_type() != *plain[i].real_type()) {
      return false;
    }
  }
  return std::all_of(functional.returns().begin(), functional.returns().end(), [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::TensorType && result.alias_info() == nullptr;
  });
}

}  // namespace

c10::OperatorHandle findOperator(const std::string& name, c10::DispatchKey device) {
  const std::size_t dot = name.find('.');
  const c10::OperatorName operator_name(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
  const std::optional<c10::OperatorHandle> found = c10::Dispatcher::singleton().findSchema(operator_name);
  ABELE_REQUIRE(found.has_value(), E0106,
                {.what = cat("operator ", name, " does not exist"),
                 .remedy = cat(inLanguage("load"), " the library that registers it")});
  if (device != c10::DispatchKey::CPU) {
    ABELE_REQUIRE(found->hasComputedKernelForDispatchKey(device), E0106,
                  {.what = cat("operator ", name, " has no kernel for ", c10::toString(device)),
                   .remedy = "run the model on CPU devices"});
    return *found;
  }
  ABELE_REQUIRE(found->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), E0106,
                {.what = cat("operator ", name, " has no CPU kernel"),
                 .remedy = inLanguage("register one with TORCH_LIBRARY_IMPL(..., CPU, m)")});
  return *found;
}

std::optional<c10::OperatorHandle> findOutVariant(const c10::OperatorHandle& functional, c10::DispatchKey device) {
  if (!functional.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
  // Losses use `out` for the values before the reduction, which are larger than the result.
  if (functional.schema().argumentIndexWithName("reduction").has_value()) return std::nullopt;
  const auto overloads = overloadsOnCpu().find(functional.operator_name().name);
  if (overloads == overloadsOnCpu().end()) return std::nullopt;
  for (const c10::OperatorName& name : overloads->second) {
    std::optional<c10::OperatorHandle> candidate = c10::Dispatcher::singleton().findSchema(name);
    if (candidate && isNative(*candidate, device) && isOutVariantOf(candidate->schema(), functional.schema()))
      return candidate;
  }
  return std::nullopt;
}

}  // namespace abele::kernels
