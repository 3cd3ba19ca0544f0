// The devices' optimizer state under the names that programs use: PopTorch's ipu_state, and torch.optim's own. The
// devices' names have the form "exp_avg/encoder.weight".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "optimizer/optimizer_fields.h"
#include "session/stored_tensor.h"

namespace abele::optimizer {

using OptimizerTensors = std::map<std::string, at::Tensor>;

/// "Accl1___encoder.weight": PopTorch's keys. Source: spec optim.md, section 6.
OptimizerTensors inPopTorch(const session::StoredTensors& state);
/// The entries of PopTorch's state that the devices have (current). Warns about missing entries, which keep their
/// value, and about entries that no device has, which are left out.
OptimizerTensors fromPopTorch(const OptimizerTensors& given, const session::StoredTensors& current);
/// PopTorch's ipu_param: the numbers that the devices compute with, by parameter. names: parameters by group.
OptimizerTensors numbersInPopTorch(const OptimizerSpec& optimizer, const std::vector<std::vector<std::string>>& names);

/// torch's state of a parameter, in torch's order. Empty if no update has reached the parameter.
using TorchState = std::vector<std::pair<std::string, at::Tensor>>;
/// updates: number of updates that the devices have made.
TorchState inTorch(OptimizerKind kind, const session::StoredTensors& state, const std::string& parameter,
                   int64_t updates);
/// Adds torch's state of a parameter (nothing: it has no entry) to the devices' state. Values that it lacks start again
/// from their initial value. current: the devices' state, for names and shapes. Warns about entries that this kind of
/// optimizer does not have, and leaves them out. Returns: the number of updates that made the state.
int64_t takeFromTorch(OptimizerKind kind, const std::optional<OptimizerTensors>& given, const std::string& parameter,
                      const session::StoredTensors& current, OptimizerTensors& state);

}  // namespace abele::optimizer
