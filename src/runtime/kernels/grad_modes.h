// Torch operators whose kernels ask whether autograd is on, in a form that is told: abele_torch::..., called by name.
// Used by compile/ (before a capture) and device/cpu.
#pragma once

namespace abele::runtime {

/// Registers them, once. Their signatures are those of the operators they stand for, which capture/grad_modes.def
/// names, and a bool at the end: autograd's mode.
void registerGradModeOperators();

}  // namespace abele::runtime
