#include "memory/paged_memory.h"

#include <map>
#include <mutex>

#include <sys/mman.h>

#include "base/fork.h"
#include "memory/mapped_file.h"

namespace abele::memory {
namespace {

struct PagedBlock {
  int64_t bytes = 0, offset = 0;
  std::shared_ptr<MappedFile> file;
};

// Never destroyed, because tensors of other libraries may outlive it.
struct PagedBlocks {
  ProcessMutex mutex;
  std::map<void*, PagedBlock> by_address;
};
PagedBlocks& pagedBlocks() {
  static auto* const instance = new PagedBlocks;
  return *instance;
}

void unmapPaged(void* begin) { freePaged(begin); }

}  // namespace

PagedMemory::PagedMemory(const std::string& folder) : file_(std::make_shared<MappedFile>(folder, 0)) {}
PagedMemory::~PagedMemory() = default;

c10::DataPtr PagedMemory::allocate(std::size_t bytes) {
  PagedBlock block{(static_cast<int64_t>(bytes) + pageBytes() - 1) / pageBytes() * pageBytes(), end_bytes_, file_};
  file_->reserve(block.offset, block.bytes);
  char* begin = file_->map(block.offset, block.bytes);
  end_bytes_ += block.bytes;
  const std::lock_guard lock(pagedBlocks().mutex);
  pagedBlocks().by_address.emplace(begin, std::move(block));
  return {begin, begin, &unmapPaged, c10::Device(c10::DeviceType::CPU)};
}

void PagedMemory::release() const {
  const std::lock_guard lock(pagedBlocks().mutex);
  for (const auto& [begin, block] : pagedBlocks().by_address)
    if (block.file == file_) releasePages(static_cast<char*>(begin), block.bytes);
}

bool freePaged(void* begin) {
  PagedBlock block;
  {
    const std::lock_guard lock(pagedBlocks().mutex);
    auto found = pagedBlocks().by_address.find(begin);
    if (found == pagedBlocks().by_address.end()) return false;
    block = std::move(found->second);
    pagedBlocks().by_address.erase(found);
  }
  ::munmap(begin, static_cast<std::size_t>(block.bytes));
  block.file->discard(block.offset, block.bytes);
  return true;
}

}  // namespace abele::memory
