// Private to exe/build: which off-chip frames come to the device for an action, and which leave it behind one.
#pragma once

#include "exe/executable.h"

namespace abele::exe {

/// Fills Action::fetches and releases from the schedule: a worker holds what its current action needs, and what that
/// and the next one both need stays. The step repeats, so the first action is next to the last; it fetches all it
/// needs, as nothing is there in the first step.
void addFetches(Executable& executable);

}  // namespace abele::exe
