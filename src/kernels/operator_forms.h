// Torch operators in forms that a capture can record: with fixed shapes instead of shapes that depend on values
// (fixed_shapes.cc), with autograd's mode as an argument (grad_modes.cc), and with the bits of conjugated and negated
// operands as an argument (math_bits.cc). They are called by name. Used by compile/ before a capture, and by devices.
#pragma once

namespace abele::kernels {

/// Each registers its operators with torch's dispatcher, once. Their signatures are those of the operators that they
/// replace. abele_torch::..., named by capture/fixed_shapes.def.
void registerFixedShapeOperators();
/// abele_torch::..., named by capture/grad_modes.def; a bool at the end is autograd's mode.
void registerGradModeOperators();
/// abele_math_bits::...; an int at the end has two bits for each argument, from the lowest on, the first if it is
/// conjugated and the second if it is negated (Tensor.is_conj, is_neg). The tensors themselves are neither.
void registerMathBitsOperators();

inline void registerOperatorForms() {
  registerFixedShapeOperators();
  registerGradModeOperators();
  registerMathBitsOperators();
}

}  // namespace abele::kernels
