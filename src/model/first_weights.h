// The first values of a module's tensors, by the modules themselves. Behind abele::initWeights.
#pragma once

#include <cstdint>
#include <vector>

#include "abele/checkpoint.h"
#include "model/access.h"

namespace abele::host {

/// The tensors of the module have no memory any more; those that shared a storage share one still. Throws E0105.
void toMeta(const torch::nn::Module& module);
/// Throws E0708 where a module has tensors of its own and is none of torch::nn's that draw.
void requireFirstWeights(const torch::nn::Module& module);
/// Calls the initialisers of all modules, children first, each once. needed: the tensors on the meta device that keep
/// the memory which they get; others have memory while their module draws. Null: no tensor is there. `own` may be
/// empty. torch's random state is afterwards what it was. Throws E0708 as requireFirstWeights(), and what `own` throws.
void drawFirstWeights(torch::nn::Module& module, uint64_t seed, const InitModule& own,
                      const std::vector<NamedTensor>* needed);

}  // namespace abele::host
