#include "compile/on_device.h"

#include <unordered_map>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "compile/program_options.h"

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
  const at::Tensor all = at::empty({0}, at::kByte).set_(storage, 0, {bytes}, {1});
  return all.to(device).storage();
}

}  // namespace

OnDevice::OnDevice(const std::vector<capture::ModelTensor>& model, c10::Device device) {
  if (device.is_cpu()) return;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies;
  for (const capture::ModelTensor& each : model) {
    const at::Tensor& tensor = *each.tensor;
    if (!tensor.defined() || !tensor.has_storage() || tensor.layout() != at::kStrided || !tensor.is_cpu()) continue;
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

c10::Device captureDevice(const ProgramOptions& options) {
  if (options.device.empty() || options.device == "cpu") return c10::Device(c10::DeviceType::CPU);
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  const std::string kind = count > 0 ? c10::DeviceTypeName(*type, /*lower_case=*/true) : "";
  const auto refuse = [&] {
    throwUser(ErrorCode::E0702, {.what = cat("there is no device ", options.device),
                                 .found = count > 0 ? cat("cpu, and ", count, " of ", kind) : "cpu",
                                 .expected = "cpu, or an accelerator that torch has here",
                                 .remedy = "use cpu devices, or install a torch for this accelerator"});
  };
  if (count == 0 || options.device.substr(0, options.device.find(':')) != kind) refuse();
  const std::string number = options.device.size() > kind.size() ? options.device.substr(kind.size() + 1) : "0";
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos || number.size() > 3 ||
      std::stoi(number) >= count)
    refuse();
  return {*type, static_cast<c10::DeviceIndex>(std::stoi(number))};
}

}  // namespace abele::host
