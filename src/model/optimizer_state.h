// The devices' optimizer state under the names that programs know: PopTorch's ipu_state, and torch.optim's own. Names
// of the devices are "exp_avg/encoder.weight".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/optimizer_fields.h"
#include "session/stored_tensor.h"

namespace abele::host {

using OptimizerTensors = std::map<std::string, at::Tensor>;

/// "Accl1___encoder.weight": PopTorch's keys. Source: spec optim.md, section 6.
OptimizerTensors inPopTorch(const StoredTensors& state);
/// The entries of PopTorch's state that the devices have (current). Warns of those that it lacks, which keep their
/// value, and of those that no device has, which are left out.
OptimizerTensors fromPopTorch(const OptimizerTensors& given, const StoredTensors& current);
/// PopTorch's ipu_param: what the devices compute with, by parameter. names: of the parameters, by group.
OptimizerTensors numbersInPopTorch(const OptimizerFields& optimizer,
                                   const std::vector<std::vector<std::string>>& names);

/// What torch keeps of a parameter, in torch's order. Empty: no update has reached it.
using TorchState = std::vector<std::pair<std::string, at::Tensor>>;
/// updates: how many the devices have made.
TorchState inTorch(OptimizerKind kind, const StoredTensors& state, const std::string& parameter, int64_t updates);
/// Puts what torch keeps of a parameter (nothing: it has no entry) among the devices' state; what that lacks starts
/// anew. current: what the devices have, for names and shapes. Warns of what an optimizer of the kind does not keep: it
/// is left out. Returns: the number of updates that it comes from.
int64_t takeFromTorch(OptimizerKind kind, const std::optional<OptimizerTensors>& given, const std::string& parameter,
                      const StoredTensors& current, OptimizerTensors& state);

}  // namespace abele::host
