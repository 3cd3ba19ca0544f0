// Assigns hardware to the devices of a model.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "compile/program_options.h"

namespace abele::compile {

/// The hardware that an option names. Entry n is for device n of the model; for more devices the list repeats. "cuda":
/// all of that kind; "cuda:1": that one; "cuda:0,cuda:1,cpu": a list. Empty: the CPU. Throws E0702 for hardware that
/// does not exist.
std::vector<c10::Device> deviceList(const std::string& names);

/// The same list, rotated so that the first entry is the process's own first device. With devicesPerProcess(d) and r
/// replicas in a process, process p starts at p * d / r. Without it, the processes of a host divide the list
/// (docs/devices.md).
std::vector<c10::Device> devicesOf(const ProgramOptions& options, int64_t process);
std::vector<c10::Device> devicesHere(const ProgramOptions& options);

/// The device of each memory space. Spaces of other processes get an accelerator of this process. All devices on the
/// CPU share one memory.
std::vector<c10::Device> devicesBySpace(const ProgramOptions& options);

/// The memory space of each device of the model (passes::StageRules::spaces). Empty: all devices are in one space.
/// Throws E0702 if processes with the same stages would have different spaces.
std::vector<int> spacesOf(const ProgramOptions& options);

}  // namespace abele::compile
