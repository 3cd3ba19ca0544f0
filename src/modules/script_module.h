// TorchScript modules as modules of torch::nn. Implements abele/script.h.
#pragma once

#include <memory>

#include "abele/forward.h"
#include "abele/placement.h"

namespace abele::modules {

/// A module with the script's tensors and submodules. While it lives, all callers get the same module. Threads: safe.
std::shared_ptr<torch::nn::Module> moduleOfScript(const torch::jit::Module& script);
/// Remembers the placement while the script lives. Throws E0708.
void placeScript(const torch::jit::Module& script, const ModuleDevices::List& placement);
/// Called after a forward that may have called the script of this module; ignores other modules. If forward replaced
/// parameters or buffers by other tensors, puts the old ones back and throws E0108.
void requireOwnTensors(const torch::nn::Module* module);
/// Calls the script's forward. Throws E0708 for arguments and results of types that a forward cannot have.
detail::StructuredForward forwardOfScript(const torch::jit::Module& script);

}  // namespace abele::modules
