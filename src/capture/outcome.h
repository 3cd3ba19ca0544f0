// Whether a failed capture would fail again for all inputs of the same types and shapes. Torch-free.
#pragma once

namespace abele::capture {

struct Outcome {
  /// The operator that failed does so for all tensors of these types and shapes.
  bool failed_by_shapes = false;
  /// The program's path depended on values that may differ; with other values it may run other operators.
  bool is_steered = false;
};
/// The outcome of this thread's captures since the last call of this function.
Outcome takeOutcome();

// Called by the recorder: with true after such a failure, with false after an operator ran.
void noteShapeFailure(bool failed);
void noteSteered();

}  // namespace abele::capture
