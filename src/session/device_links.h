// Links between accelerators of several processes that do not pass the host's memory (ABELE_HANDOVER=device).
#pragma once

#include <functional>

#include "runtime/collective/device_links.h"

namespace abele::host {

struct Compiled;
struct ProgramOptions;

/// Connects the accelerators of a program that was loaded with those of other processes; nothing where nobody asks for
/// that, or no link leaves this process's replica. All processes call it. poll: as in Session. Throws E0714, E0702,
/// E0606, E0602.
void connectLinks(const Compiled& compiled, const ProgramOptions& options, const std::function<bool()>& poll);

/// What torch.distributed's groups of two processes are made with: runtime::setDeviceGroups, for a program that has
/// torch.distributed.
void joinProcessesByDevices(runtime::MakeDeviceGroup make);

}  // namespace abele::host
