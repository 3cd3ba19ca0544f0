// Which live training models of this process train which tensors, also for modules that share submodules.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "modules/module.h"

namespace abele::model {

class Model;

/// Notes that `owner` trains a module with these tensors. Threads: safe.
void claimParameters(const void* owner, const std::weak_ptr<Model>& model,
                     const std::vector<modules::NamedTensor>& tensors);
/// The owner no longer trains anything.
void releaseParameters(const void* owner);
/// The models that train some of these tensors, without duplicates. Threads: safe.
std::vector<std::shared_ptr<Model>> trainersOf(const std::vector<modules::NamedTensor>& tensors);
/// A number that each claim and each release increases. Threads: safe.
uint64_t numChanges();
/// numChanges() when a training of some of the tensors last ended; 0 if none has. Threads: safe.
uint64_t lastEnd(const std::vector<modules::NamedTensor>& tensors);

}  // namespace abele::model
