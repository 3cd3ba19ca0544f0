#include "runtime/memory/paged_memory.h"

#include <map>
#include <mutex>

#include <sys/mman.h>

#include "runtime/memory/mapped_file.h"

namespace abele::runtime {
namespace {

struct Block {
  int64_t bytes = 0, offset = 0;
  std::shared_ptr<MappedFile> file;
};

// Never destroyed: tensors of other libraries may outlive it.
struct Blocks {
  std::mutex mutex;
  std::map<void*, Block> by_address;
};
Blocks& blocks() {
  static auto* const instance = new Blocks;
  return *instance;
}

void unmap(void* begin) { freePaged(begin); }

}  // namespace

PagedMemory::PagedMemory(const std::string& folder) : file_(std::make_shared<MappedFile>(folder, 0)) {}
PagedMemory::~PagedMemory() = default;

c10::DataPtr PagedMemory::allocate(std::size_t bytes) {
  Block block{(static_cast<int64_t>(bytes) + pageBytes() - 1) / pageBytes() * pageBytes(), end_bytes_, file_};
  file_->reserve(block.offset, block.bytes);
  char* begin = file_->map(block.offset, block.bytes);
  end_bytes_ += block.bytes;
  const std::lock_guard lock(blocks().mutex);
  blocks().by_address.emplace(begin, std::move(block));
  return {begin, begin, &unmap, c10::Device(c10::DeviceType::CPU)};
}

void PagedMemory::release() const {
  const std::lock_guard lock(blocks().mutex);
  for (const auto& [begin, block] : blocks().by_address)
    if (block.file == file_) releasePages(static_cast<char*>(begin), block.bytes);
}

bool freePaged(void* begin) {
  Block block;
  {
    const std::lock_guard lock(blocks().mutex);
    auto found = blocks().by_address.find(begin);
    if (found == blocks().by_address.end()) return false;
    block = std::move(found->second);
    blocks().by_address.erase(found);
  }
  ::munmap(begin, static_cast<std::size_t>(block.bytes));
  block.file->discard(block.offset, block.bytes);
  return true;
}

}  // namespace abele::runtime
