// Finds the operator behind a name and its `out=` twin. Used by device/cpu and operators/.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

namespace abele::runtime {

/// "aten::add.Tensor". Throws E0106 when there is no such operator or it has no kernel for the device.
c10::OperatorHandle findOperator(const std::string& name, c10::DispatchKey device = c10::DispatchKey::CPU);

/// The overload that writes the results of `functional` into given tensors: the other arguments are the same, one out
/// argument per result, and a kernel of its own for the device (the generated wrappers around the functional operator
/// make a copy). Nothing when there is none.
std::optional<c10::OperatorHandle> findOutVariant(const c10::OperatorHandle& functional,
                                                  c10::DispatchKey device = c10::DispatchKey::CPU);

}  // namespace abele::runtime
