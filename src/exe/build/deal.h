// Private to exe/build: several devices take the micro-batches of one device in turn.
#pragma once

#include <vector>

#include "exe/build/build.h"
#include "exe/build/dependencies.h"

namespace abele::exe {

/// Replaces every worker by `devices` workers. The one at place i takes micro-batches i, i + devices, ...; all share
/// the worker's memory, so gradients are added to the sums in the order of the micro-batches. Results are
/// bit-equal to those of one device. Device d becomes devices d * devices to d * devices + devices - 1.
///
/// A segment becomes a chain of parts. addWaits lets a part run for a micro-batch after it has run for the one before,
/// so the workers follow each other at the distance of a part. Parts of an update that use persistent memory alone are
/// shared among the workers. Requires: rings and transient memory have frames for all workers; one replica, one
/// process, one memory space, no off-chip memory, no waits yet. origins: follow their instructions, unless null.
void dealMicroBatches(Executable& executable, std::vector<SegmentUses>& uses, int64_t devices, Origins* origins);

}  // namespace abele::exe
