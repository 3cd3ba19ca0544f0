#include "compile/on_device.h"

#include <unordered_map>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace abele::compile {
namespace {

c10::Storage copyOf(const c10::Storage& storage, c10::Device device) {
  const c10::InferenceMode no_autograd;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  if (storage.device().is_meta() && device.is_cpu()) return zeros(bytes);
  if (storage.device().is_meta())
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(device)).zero_().storage();
  const at::Tensor all =
      at::empty({0}, at::TensorOptions(at::kByte).device(storage.device())).set_(storage, 0, {bytes}, {1});
  return all.to(device).storage();
}

}  // namespace

OnDevice::OnDevice(const std::vector<capture::ModelTensor>& model, c10::Device device) {
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies;
  for (const capture::ModelTensor& each : model) {
    const at::Tensor& tensor = *each.tensor;
    if (!tensor.defined() || !tensor.has_storage() || tensor.layout() != at::kStrided) continue;
    if (tensor.device() == device || (device.is_cpu() && !tensor.is_meta())) continue;
    has_shapes_alone_ = has_shapes_alone_ || tensor.is_meta();
    const c10::Storage own = tensor.storage();
    c10::Storage& copy = copies[own.unsafeGetStorageImpl()];
    if (!copy) copy = copyOf(own, device);
    moved_.before.emplace_back(tensor, own);
    setMemory(tensor, copy);
  }
}

OnDevice::~OnDevice() { takeMemory(moved_); }

}  // namespace abele::compile
