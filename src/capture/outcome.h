// What a capture that failed says of the next one with the same types and shapes. Torch-free.
#pragma once

namespace abele::capture {

struct Outcome {
  /// An operator failed that fails for all tensors of these types and shapes.
  bool failed_by_shapes = false;
  /// Values that may differ led the program where it went: with others it may go elsewhere.
  bool is_steered = false;
};
/// Of the captures of this thread since it was last asked for.
Outcome takeOutcome();

// Called by the recorder. An operator failed so; another one ran.
void noteShapeFailure(bool failed);
void noteSteered();

}  // namespace abele::capture
