// Which live training model of this process trains which parameters: of modules that share submodules, too.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/access.h"

namespace abele::host {

class Model;

/// Notes that `owner` trains the parameters; warns of one that another live owner trains too. Threads: safe.
void claimParameters(const void* owner, const std::weak_ptr<Model>& model, const std::vector<NamedTensor>& tensors);
/// The owner trains nothing any more.
void releaseParameters(const void* owner);
/// Models that train some of the tensors, each once. Threads: safe.
std::vector<std::shared_ptr<Model>> trainersOf(const std::vector<NamedTensor>& tensors);
/// Another number after each claim. Threads: safe.
uint64_t numClaims();

}  // namespace abele::host
