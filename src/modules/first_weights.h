// The first values of a module's tensors, drawn by the modules themselves. Implements abele::initWeights.
#pragma once

#include <cstdint>
#include <vector>

#include "abele/checkpoint.h"
#include "modules/module.h"

namespace abele::modules {

/// Frees the memory of the module's tensors. Those that shared a storage still share one. Throws E0105.
void toMeta(const torch::nn::Module& module);
/// Throws E0708 if a module has its own tensors and torch::nn cannot initialise them.
void requireFirstWeights(const torch::nn::Module& module);
/// Calls the initialisers of all modules once, children first. needed: the tensors on the meta device that keep their
/// memory; all others have memory only while their module draws. Null: no tensor is on the meta device. `own` may be
/// empty. Restores torch's random state. Throws the E0708 of requireFirstWeights(), and the errors of `own`.
void drawFirstWeights(torch::nn::Module& module, uint64_t seed, const InitModule& own,
                      const std::vector<NamedTensor>* needed);

}  // namespace abele::modules
