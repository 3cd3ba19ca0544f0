// A file without a name whose parts are mapped into memory. It disappears when the process ends, even after a crash.
// Torch-free.
#pragma once

#include <cstdint>
#include <string>

namespace abele::memory {

/// Threads: safe.
class MappedFile {
 public:
  /// folder: empty for the system's temporary folder. The whole file is allocated at once. Throws E0605.
  MappedFile(const std::string& folder, int64_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Maps a part, which is zero at first; unmap it with munmap. Throws E0605.   Requires: multiples of pageBytes().
  char* map(int64_t offset, int64_t bytes) const;
  /// Reserves space for these bytes; the file grows if needed. Throws E0605.
  void reserve(int64_t offset, int64_t bytes) const;
  /// Frees these bytes in the file system if it supports that; their contents are lost.
  void discard(int64_t offset, int64_t bytes) const;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  int file_ = -1;
};

int64_t pageBytes();
/// Brings mapped pages into the process's resident set. writes: prepares them for writing. Throws E0605 if they cannot
/// be read.
void fetchPages(char* begin, int64_t bytes, bool writes);
/// Removes pages from the resident set; their contents stay in the file or in the system's cache of it.
void releasePages(char* begin, int64_t bytes);

}  // namespace abele::memory
