// File-backed memory for tensors of a thread, whose pages are in memory only while they are used. A capture then needs
// memory for the tensors of the current operator only, not for all that it keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Allocator.h>

namespace abele::memory {

class MappedFile;

/// Large tensors that its thread makes while it is in use (steering_allocator.h, PagedScope); they may outlive it.
/// Threads: owner only; tensors may die on any thread.
class PagedMemory {
 public:
  static constexpr std::size_t kSmallest = std::size_t{256} << 10;

  /// folder: empty for the system's temporary folder. Throws E0605.
  explicit PagedMemory(const std::string& folder);
  ~PagedMemory();
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  /// The memory is zero at first. Throws E0605 if the file has no room.
  c10::DataPtr allocate(std::size_t bytes);
  /// Removes all of it from the process's resident set. Bytes that are used later are loaded again.
  void release() const;

 private:
  std::shared_ptr<MappedFile> file_;
  int64_t end_bytes_ = 0;
};

/// Frees memory of a PagedMemory. Returns false for other memory.
bool freePaged(void* begin);

}  // namespace abele::memory
