// For users of the library: what Abele throws. Error is the base; UserError: the program or its options are wrong;
// DeviceError: a device, peer, disk or memory failed; InternalError: Abele is wrong. what() says what was found, what
// was expected and what to try; code() is a row of docs/errors.md. An exception that forward throws passes unchanged.
#pragma once

#include "base/error.h"
