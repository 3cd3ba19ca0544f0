// For programs without an optimizer: tensors of the model that the host or the device writes while the other has a
// copy.
#pragma once

namespace abele::session {

class Session;

/// Returns true if forward writes tensors of the model. Requires: a program is compiled.
bool forwardWrites(Session& session);
/// For a program whose devices work in the model's memory: returns true if a device has an outdated copy of a tensor,
/// or if a training has taken memory that a device used. Requires: a program is compiled.
bool hasEdits(Session& session);
/// Uploads these tensors. Requires: the devices have no newer values. Throws E0704 for a tensor that differs from the
/// compiled one.
void uploadEdited(Session& session);
/// Copies the tensors that the program writes to the host's tensors. Leaves out those that the user wrote since the
/// last copy, because their values are newer.   Requires: a program is compiled.
void copyWrittenToHost(Session& session);

}  // namespace abele::session
