// A module's tensors as targets for weights from files.
#pragma once

#include <vector>

#include "files/weight_files.h"

namespace torch::nn {
class Module;
}

namespace abele::modules {

/// All parameters and buffers of a module.
std::vector<files::WeightTarget> weightTargetsOf(const torch::nn::Module& module);

}  // namespace abele::modules
