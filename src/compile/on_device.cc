#include "compile/on_device.h"

#include <unordered_map>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace abele::host {
namespace {

// torch's set_data() refuses devices of another kind, so the memory is exchanged below it.
void setMemory(const at::Tensor& tensor, const c10::Storage& storage) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const bool may_change = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);
  impl->_change_backend_component_keys(storage.device());
  impl->set_storage_keep_dtype(storage);
  impl->set_allow_tensor_metadata_change(may_change);
}

c10::Storage copyOf(const c10::Storage& storage, c10::Device device) {
  const c10::InferenceMode no_autograd;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const at::Tensor all =
      at::empty({0}, at::TensorOptions(at::kByte).device(storage.device())).set_(storage, 0, {bytes}, {1});
  return all.to(device).storage();
}

}  // namespace

OnDevice::OnDevice(const std::vector<capture::ModelTensor>& model, c10::Device device) {
  if (device.is_cpu()) return;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies;
  for (const capture::ModelTensor& each : model) {
    const at::Tensor& tensor = *each.tensor;
    if (!tensor.defined() || !tensor.has_storage() || tensor.layout() != at::kStrided) continue;
    if (tensor.device() == device || tensor.is_meta()) continue;
    const c10::Storage own = tensor.storage();
    c10::Storage& copy = copies[own.unsafeGetStorageImpl()];
    if (!copy) copy = copyOf(own, device);
    moved_.push_back({tensor, own});
    setMemory(tensor, copy);
  }
}

OnDevice::~OnDevice() {
  for (const Moved& moved : moved_) setMemory(moved.tensor, moved.own);
}

}  // namespace abele::host
