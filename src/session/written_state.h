// Tensors of the model that one side writes and the other has a copy of, in a program without an optimizer.
#pragma once

namespace abele::session {

class Session;

/// Returns true if forward writes buffers. Requires: a program is compiled.
bool writesBuffers(Session& session);
/// Returns true if the host has newer values of a tensor that the devices have a copy of, though devices of this
/// program work in the model's memory where they can, or if a training took such memory over. Requires: a program is
/// compiled.
bool hasEdits(Session& session);
/// Uploads these tensors to copies. Requires: the devices have no newer values. Throws E0704 for a tensor that differs
/// from the compiled one.
void uploadEdited(Session& session);
/// Copies the tensors that the program writes to the host's tensors. Leaves out those that the user wrote since the
/// last copy, because their values are newer.   Requires: a program is compiled.
void copyWrittenToHost(Session& session);

}  // namespace abele::session
