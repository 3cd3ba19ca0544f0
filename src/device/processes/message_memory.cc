#include "device/processes/message_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "kernels/basic.h"

namespace abele::device {

at::Tensor DirectMessages::room(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

void DirectMessages::copy(const at::Tensor& to, const at::Tensor& from) {
  if (device_.is_cpu())
    kernels::copyInto(to, from);
  else
    to.copy_(from, /*non_blocking=*/true);
}

MessageMemory& hostMessageMemory() {
  static DirectMessages memory(c10::Device(c10::DeviceType::CPU));
  return memory;
}

}  // namespace abele::device
