// Private to exe/build: decides which off-chip frames are fetched before an action and released after one.
#pragma once

#include "exe/executable.h"

namespace abele::exe {

/// Fills Action::fetches and releases from the schedule. A worker holds the frames that its current action needs;
/// frames that the next action needs too stay. The step repeats, so the first action follows the last one. The first
/// action fetches all that it needs, because the device is empty in the first step.
void addFetches(Executable& executable);

}  // namespace abele::exe
