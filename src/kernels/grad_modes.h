// Torch operators whose kernels ask whether autograd is on, in a form that takes the mode as an argument. They are
// called by name, abele_torch::... Used by compile/ (before a capture) and device/cpu.
#pragma once

namespace abele::kernels {

/// Registers them, once. Their signatures are those of the operators that they replace, which capture/grad_modes.def
/// names, with a bool at the end for autograd's mode.
void registerGradModeOperators();

}  // namespace abele::kernels
