// What a program without an optimizer leaves in the model's tensors: buffers that forward writes.
#pragma once

namespace abele::host {

class Session;

/// Copies the tensors that the program writes to the host's, but for those that somebody wrote there since they were
/// last in step: the host's values are the newer ones.   Requires: a program is compiled.
void copyWrittenToHost(Session& session);

}  // namespace abele::host
