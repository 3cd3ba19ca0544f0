// How long copies between two memories take.
#pragma once

#include <c10/core/Device.h>

#include "base/link_time.h"

namespace abele::runtime {

/// Copies as links and messages of a program make them: on a stream of an accelerator, to and from pinned memory of the
/// host. Takes some milliseconds. Nothing where both are one, or both the host. Throws what the devices throw.
LinkTime measureCopy(c10::Device from, c10::Device to);

}  // namespace abele::runtime
