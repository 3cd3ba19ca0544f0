// Torch operators that look at the bits of conjugated and negated views (Tensor.is_conj, is_neg) themselves, in a form
// that is told which of its operands are such: abele_math_bits::..., called by name. Used by compile/ (before a
// capture) and the devices.
#pragma once

namespace abele::kernels {

/// Registers them, once. Their signatures are those of the operators, and an int at the end: two bits for each
/// argument, from the lowest on, the first if it is conjugated and the second if it is negated. The tensors themselves
/// are neither.
void registerMathBitsOperators();

}  // namespace abele::kernels
