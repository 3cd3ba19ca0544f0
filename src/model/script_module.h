// TorchScript modules as modules of torch::nn. Behind abele/script.h.
#pragma once

#include <memory>

#include "abele/forward.h"
#include "abele/placement.h"

namespace abele::host {

/// A module with the script's tensors and submodules; one for all who ask while somebody holds it. Threads: safe.
std::shared_ptr<torch::nn::Module> moduleOfScript(const torch::jit::Module& script);
/// Remembered for as long as the script lives. Throws E0708.
void placeScript(const torch::jit::Module& script, const ModulePlacement& placement);
/// Behind a forward that may have called the script which this module stands for; others are none. Throws E0108 where
/// forward has put other tensors in the place of parameters or buffers, and puts these back.
void requireOwnTensors(const torch::nn::Module* module);
/// Calls the script's forward. Throws E0708 for arguments and results that are none of a forward's.
detail::StructuredForward forwardOfScript(const torch::jit::Module& script);

}  // namespace abele::host
