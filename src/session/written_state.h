// Buffers that forward writes: the state that a program without an optimizer leaves in the model's tensors.
#pragma once

namespace abele::session {

class Session;

/// Copies the tensors that the program writes to the host's tensors. Leaves out those that the user wrote since the
/// last copy, because their values are newer.   Requires: a program is compiled.
void copyWrittenToHost(Session& session);

}  // namespace abele::session
