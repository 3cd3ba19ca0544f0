// Which live training model of this process trains which parameters. Used by model.h.
#pragma once

#include <vector>

#include "model/access.h"

namespace abele::host {

/// Notes that `owner` trains the parameters; warns of one that another live owner trains too. Threads: safe.
void claimParameters(const void* owner, const std::vector<NamedTensor>& tensors);
/// The owner trains nothing any more.
void releaseParameters(const void* owner);

}  // namespace abele::host
