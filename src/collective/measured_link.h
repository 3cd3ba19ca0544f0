// Measures the time of messages between two processes.
#pragma once

#include <cstdint>

#include "base/link_time.h"
#include "collective/peers.h"

namespace abele::collective {

/// Sends messages to and fro over a link that exists for this only. It uses the same transport as the links of a
/// program, so shared memory within a host. It takes some milliseconds; on a slow network it sends a few messages of 16
/// KiB. Both processes call it, one of them with `starts`. Returns: the times; nothing in the process without `starts`.
/// Throws as Peers::send.
LinkTime measureLink(Peers& peers, int64_t with, bool starts);

/// Measures the link of every process to the next one. Each pair measures while the others are quiet. All processes
/// call it.
/// Returns: the times of this process's link to the next one; nothing in the last process.
LinkTime measureLinkToNext(Peers& peers);

}  // namespace abele::collective
