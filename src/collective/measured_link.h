// Measures the time of messages between two processes.
#pragma once

#include "base/link_time.h"
#include "collective/peers.h"

namespace abele::collective {

/// Sends messages to and fro between every process and the next one, over a link that only measurements use. It uses
/// the same transport as the links of a program, so shared memory within a host. All processes call it. A process
/// measures with one neighbour at a time. Returns: the times of this process's link to the next one; nothing in the
/// last process. Throws the errors of Peers::send.
LinkTime measureLinkToNext(Peers& peers);

}  // namespace abele::collective
