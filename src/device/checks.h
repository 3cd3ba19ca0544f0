// Checks of tensors and options for all devices, so that all of them refuse the same input with the same message.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "device/backend.h"
#include "exe/executable.h"

namespace abele::device {

/// Throws E0702.
void checkOptions(const DeviceOptions& options);
/// Requires: index names an external.
const exe::External& externalAt(const exe::Executable& executable, int32_t index);
/// The slots of all copies of a used external, without duplicates: copies of replicas and of memory spaces.
std::vector<int32_t> slotsOf(const exe::External& external);
/// The part of an external's tensor that a slot has: all of it, or a view of a range.
at::Tensor contentsOf(const exe::Executable& executable, const exe::External& external, int32_t slot,
                      const at::Tensor& host);
/// Throws E0704 unless the tensor has the type of the external. Requires: the program uses the external.
void checkUpload(const exe::Executable& executable, const exe::External& external, const at::Tensor& host);
void checkDownload(const exe::Executable& executable, const exe::External& external, const at::Tensor& host);
/// Throws E0704. Does not check inputs that the program does not use.
void checkInputs(const exe::Executable& executable, const std::vector<at::Tensor>& inputs);
/// Checks what bindOutputs() requires.
void checkOutputs(const exe::Executable& executable, const std::vector<std::vector<at::Tensor>>& outputs);

}  // namespace abele::device
