// Measures the time of copies between two memories.
#pragma once

#include <c10/core/Device.h>

#include "base/link_time.h"

namespace abele::device {

/// Copies like the links and messages of a program: on a stream of an accelerator, to and from pinned memory of the
/// host. Takes some milliseconds. Returns nothing if both are the same memory, or both the host. Throws the errors of
/// the devices.
LinkTime measureCopy(c10::Device from, c10::Device to);

}  // namespace abele::device
