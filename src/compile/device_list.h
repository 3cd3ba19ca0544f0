// Which devices a model runs on.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "compile/program_options.h"

namespace abele::host {

/// The devices that an option names, in the order of the model's devices, which begin the list again where there are
/// more of them. "cuda": all of them; "cuda:1": that one; "cuda:0,cuda:1,cpu": a list. Empty: the CPU. Throws E0702 for
/// a device that is not there.
std::vector<c10::Device> deviceList(const std::string& names);

/// The same from where a process begins it: its n-th device is the n-th of these, which begin again. A process with
/// devicesPerProcess(d) begins at the d-th for each process before it; one without takes its part of the list, as the
/// others of this host take theirs.
std::vector<c10::Device> devicesOf(const ProgramOptions& options, int64_t process);
std::vector<c10::Device> devicesHere(const ProgramOptions& options);

/// The device of each memory space. Those of other processes are given an accelerator of this one. All devices on the
/// CPU share one memory.
std::vector<c10::Device> devicesBySpace(const ProgramOptions& options);

/// The memory spaces of the model's devices (passes::StageRules::spaces). Empty: they are in one. Throws E0702 where
/// processes would not have the same.
std::vector<int> spacesOf(const ProgramOptions& options);

}  // namespace abele::host
