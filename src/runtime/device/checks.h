// What every device asks of the tensors and options that it is given, so that all refuse the same with the same words.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "exe/executable.h"
#include "runtime/device/backend.h"

namespace abele::runtime {

/// Throws E0702.
void checkOptions(const DeviceOptions& options);
/// Requires: an index of an external.
const exe::External& externalAt(const exe::Executable& executable, int32_t index);
/// Slots of all copies of an external that is used, each once: of the replicas and of the memory spaces.
std::vector<int32_t> slotsOf(const exe::External& external);
/// Throws E0704 unless the tensor has the type of the external, which is used.
void checkUpload(const exe::Executable& executable, const exe::External& external, const at::Tensor& host);
void checkDownload(const exe::Executable& executable, const exe::External& external, const at::Tensor& host);
/// Throws E0704. Inputs that the program does not use may be anything.
void checkInputs(const exe::Executable& executable, const std::vector<at::Tensor>& inputs);
/// Requires what bindOutputs() requires.
void checkOutputs(const exe::Executable& executable, const std::vector<std::vector<at::Tensor>>& outputs);

}  // namespace abele::runtime
