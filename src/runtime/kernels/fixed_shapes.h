// Torch operators whose results have shapes that depend on values, in a form with fixed shapes: registered with torch's
// dispatcher as abele_torch::..., called by name. Used by compile/ (before a capture) and device/cpu.
#pragma once

namespace abele::runtime {

/// Registers them, once. Their signatures are those of the operators they stand for, which capture/fixed_shapes.def
/// names.
void registerFixedShapeOperators();

}  // namespace abele::runtime
