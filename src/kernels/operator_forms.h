// Torch operators in forms that a capture can record: with fixed shapes instead of shapes that depend on values
// (fixed_shapes.cc), with autograd's mode as an argument (grad_modes.cc), and with the bits of conjugated and negated
// operands as an argument (math_bits.cc). Graphs refer to them by name. compile/ registers them before a capture, and
// devices before they load a program.
#pragma once

namespace abele::kernels {

/// Each function registers its operators with torch's dispatcher, once. They have the signatures of the operators that
/// they replace. The comments give their names. abele_torch::..., from capture/fixed_shapes.def.
void registerFixedShapeOperators();
/// abele_torch::..., from capture/grad_modes.def; an additional last argument, a bool, is autograd's mode.
void registerGradModeOperators();
/// abele_math_bits::...; an additional last argument, an int, has two bits for each argument, the lowest two for the
/// first one: is conjugated, and is negated (Tensor.is_conj, is_neg). The tensors themselves have neither property.
void registerMathBitsOperators();

inline void registerOperatorForms() {
  registerFixedShapeOperators();
  registerGradModeOperators();
  registerMathBitsOperators();
}

}  // namespace abele::kernels
