// What configuration files build by calls: stages, phases, strategies, location settings.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "options/value.h"

namespace abele::host {

/// Stage("a", "b"), PipelinedExecution(AutoStage.AutoIncrement), ... Throws E0701 for a name that does not exist, E0702
/// for arguments that do not fit.
OptionObject makeObject(const std::string& type, const std::vector<OptionValue>& arguments);
/// .ipu(1), .schedule("gpipe"), ... Throws as makeObject.
void callMethod(OptionObject& object, const std::string& name, const std::vector<OptionValue>& arguments,
                const std::vector<std::pair<std::string, OptionValue>>& named);
/// Throws E0702 where a block is in two stages.
void requireDistinctBlocks(const ExecutionStrategy& strategy);
/// What Python's Options.toDict() says of a strategy.
OptionMap backendOptions(const ExecutionStrategy& strategy);

}  // namespace abele::host
