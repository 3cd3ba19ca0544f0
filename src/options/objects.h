// Makes the objects that configuration files construct: stages, phases, strategies, location settings.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "options/value.h"

namespace abele::options {

/// Builds Stage("a", "b"), PipelinedExecution(AutoStage.AutoIncrement), ... Throws E0701 for an unknown name, E0702 for
/// arguments that do not fit.
OptionObject makeObject(const std::string& type, const std::vector<OptionValue>& arguments);
/// Calls .ipu(1), .schedule("gpipe"), ... on the object. Throws the errors of makeObject.
void callMethod(OptionObject& object, const std::string& name, const std::vector<OptionValue>& arguments,
                const std::vector<std::pair<std::string, OptionValue>>& named);
/// Makes a phased strategy of the stages of all phases, in order.
void setPhases(ExecutionStrategy& strategy, const std::vector<Phase>& phases);
/// Throws E0702 if a block is in two stages.
void requireDistinctBlocks(const ExecutionStrategy& strategy);
/// The entries for a strategy in Python's Options.toDict().
OptionMap backendOptions(const ExecutionStrategy& strategy);

}  // namespace abele::options
