#include "compile/meta_tensors.h"

#include <cerrno>
#include <cstring>

#include <sys/mman.h>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"

namespace abele::compile {
namespace {

/// A mapping that the deleter of its storage removes.
struct Mapping {
  void* begin;
  size_t bytes;
};

void unmap(void* context) {
  const auto* mapping = static_cast<Mapping*>(context);
  ::munmap(mapping->begin, mapping->bytes);
  delete mapping;
}

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

// torch's set_data() refuses a device of another kind, so this exchanges the storage of the implementation.
void setMemory(const at::Tensor& tensor, const c10::Storage& storage) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const bool may_change = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);
  impl->_change_backend_component_keys(storage.device());
  impl->set_storage_keep_dtype(storage);
  impl->set_allow_tensor_metadata_change(may_change);
}

c10::Storage zeros(int64_t bytes) {
  if (bytes == 0) return {c10::Storage::use_byte_size_t(), 0, c10::GetCPUAllocator()->allocate(0), nullptr, false};
  // A mapping instead of the allocator: all its pages share one page of zeros until a write.
  void* begin = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED)
    throwDevice(ErrorCode::E0605, {.what = "not enough addresses for the tensors of a model on the meta device",
                                   .found = std::strerror(errno),
                                   .expected = cat(bytes, " bytes of addresses, which take no memory"),
                                   .remedy = "raise the limit of the process's addresses (ulimit -v)"});
  auto* mapping = new Mapping{begin, static_cast<size_t>(bytes)};
  return {c10::Storage::use_byte_size_t(), mapping->bytes,
          c10::DataPtr(begin, mapping, &unmap, c10::Device(c10::DeviceType::CPU)), nullptr, false};
}

Memories giveMemory(const std::vector<at::Tensor>& tensors) {
  const c10::InferenceMode no_autograd;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> given;
  Memories memories;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) continue;
    const c10::Storage before = tensor.storage();
    c10::Storage& memory = given[before.unsafeGetStorageImpl()];
    if (!memory) memory = at::empty({static_cast<int64_t>(before.nbytes())}, at::kByte).storage();
    memories.before.emplace_back(tensor, before);
    setMemory(tensor, memory);
  }
  return memories;
}

void takeMemory(const Memories& memories) {
  for (const auto& [tensor, before] : memories.before) setMemory(tensor, before);
}

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
