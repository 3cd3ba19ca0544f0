// Finds an operator by its name, and its `out=` overload. Used by device/aten, compile/ and operators/.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

namespace abele::kernels {

/// Example: "aten::add.Tensor". Throws E0106 if the operator does not exist or has no kernel for the device.
c10::OperatorHandle findOperator(const std::string& name, c10::DispatchKey device = c10::DispatchKey::CPU);

/// The overload that writes the results of `functional` into given tensors. It has the same other arguments, one out
/// argument for each result, and a kernel of its own for the device. Returns nothing if there is none; a generated
/// wrapper around the functional operator does not count, because it would make a copy.
std::optional<c10::OperatorHandle> findOutVariant(const c10::OperatorHandle& functional,
                                                  c10::DispatchKey device = c10::DispatchKey::CPU);

}  // namespace abele::kernels
