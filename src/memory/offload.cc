#include "memory/offload.h"

#include <cstring>
#include <memory>
#include <unordered_set>

#include <sys/mman.h>

#include <ATen/core/Tensor.h>

#include "memory/mapped_file.h"

namespace abele::memory {
namespace {

/// The memory of a storage that was moved: the context of its DataPtr.
struct Moved {
  char* begin;
  int64_t bytes;
};

int64_t wholePages(std::size_t bytes) {
  return (static_cast<int64_t>(bytes) + pageBytes() - 1) / pageBytes() * pageBytes();
}

void unmapMoved(void* context) {
  const std::unique_ptr<Moved> moved(static_cast<Moved*>(context));
  ::munmap(moved->begin, static_cast<std::size_t>(moved->bytes));
}

// Skips torch's check, because a capture may have locked the memory.
at::DataPtr& memoryOf(c10::StorageImpl& storage) { return storage._mutable_data_ptr_no_checks(); }
bool isMoved(c10::StorageImpl& storage) { return memoryOf(storage).get_deleter() == &unmapMoved; }

}  // namespace

void offload(const std::vector<at::Tensor>& tensors, const std::string& folder) {
  std::vector<c10::StorageImpl*> storages;
  std::unordered_set<const c10::StorageImpl*> seen;
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) continue;
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (storage->nbytes() == 0 || isMoved(*storage) || !seen.insert(storage).second) continue;
    storages.push_back(storage);
    total += wholePages(storage->nbytes());
  }
  if (storages.empty()) return;
  const MappedFile file(folder, total);  // the mappings keep the file alive
  int64_t offset = 0;
  for (c10::StorageImpl* storage : storages) {
    const int64_t bytes = wholePages(storage->nbytes());
    char* begin = file.map(offset, bytes);
    offset += bytes;
    std::memcpy(begin, storage->mutable_data(), storage->nbytes());
    releasePages(begin, bytes);
    storage->set_data_ptr_noswap({begin, new Moved{begin, bytes}, &unmapMoved, c10::Device(c10::DeviceType::CPU)});
  }
}

bool isOffloaded(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && isMoved(*tensor.storage().unsafeGetStorageImpl());
}

void releaseIfOffloaded(const at::Tensor& tensor) {
  if (!isOffloaded(tensor)) return;
  const auto* moved = static_cast<const Moved*>(memoryOf(*tensor.storage().unsafeGetStorageImpl()).get_context());
  releasePages(moved->begin, moved->bytes);
}

}  // namespace abele::memory
