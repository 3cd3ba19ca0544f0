// Torch operators whose results have shapes that depend on values, in a form with fixed shapes. They are registered
// with torch's dispatcher as abele_torch::... and called by name. Used by compile/ (before a capture) and device/cpu.
#pragma once

namespace abele::kernels {

/// Registers them, once. Their signatures are those of the operators that they replace, which capture/fixed_shapes.def
/// names.
void registerFixedShapeOperators();

}  // namespace abele::kernels
