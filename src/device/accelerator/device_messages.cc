#include "device/accelerator/device_messages.h"

#include <ATen/ops/empty.h>

namespace abele::device {

at::Tensor DeviceMessages::room(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

void DeviceMessages::copy(const at::Tensor& to, const at::Tensor& from) { to.copy_(from, /*non_blocking=*/true); }

}  // namespace abele::device
