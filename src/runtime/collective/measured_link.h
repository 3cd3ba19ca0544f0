// How long messages between two processes take.
#pragma once

#include <cstdint>

#include "base/link_time.h"
#include "runtime/collective/peers.h"

namespace abele::runtime {

/// Sends messages to and fro on a link of its own, which is gone afterwards: over the same transport as the links of a
/// program, shared memory within a host. It takes some milliseconds, on a slow network a few messages of 16 KiB.
/// Both processes call it, one with starts. Returns: nothing in the one that does not. Throws as Peers::send.
LinkTime measureLink(Peers& peers, int64_t with, bool starts);

/// Every process with the next one, so that each measures alone with another. All processes call it.
/// Returns: what this process found of the link to the next one; nothing in the last process.
LinkTime measureLinkToNext(Peers& peers);

}  // namespace abele::runtime
