// Finds the operator behind a name and its `out=` twin. Used by device/cpu and operators/.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

namespace abele::runtime {

/// "aten::add.Tensor". Throws E0106 when there is no such operator or it has no CPU kernel.
c10::OperatorHandle findOperator(const std::string& name);

/// The overload that writes the results of `functional` into given tensors: the other arguments are the same, one out
/// argument per result, and a CPU kernel registered for itself (the generated wrappers around the functional operator
/// make a copy). Nothing when there is none.
std::optional<c10::OperatorHandle> findOutVariant(const c10::OperatorHandle& functional);

}  // namespace abele::runtime
