// Which devices a model runs on.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace abele::host {

/// The devices that an option names, in the order of the model's devices, which begin the list again where there are
/// more of them. "cuda": all of them; "cuda:1": that one; "cuda:0,cuda:1,cpu": a list. Empty: the CPU. Throws E0702 for
/// a device that is not there.
std::vector<c10::Device> deviceList(const std::string& names);

/// One of each: a memory space is the device at its index. All devices on the CPU share one memory.
std::vector<c10::Device> devicesBySpace(const std::vector<c10::Device>& devices);

/// The memory spaces of the model's devices (passes::StageRules::spaces). Empty: they are in one.
std::vector<int> spacesOf(const std::vector<c10::Device>& devices);

}  // namespace abele::host
