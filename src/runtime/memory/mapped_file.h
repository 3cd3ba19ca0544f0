// A file without a name whose parts are mapped into memory: nothing of it is left when the process is gone, however it
// went. Torch-free.
#pragma once

#include <cstdint>
#include <string>

namespace abele::runtime {

/// Threads: safe.
class MappedFile {
 public:
  /// folder: empty for the system's temporary one. The whole file is allocated at once. Throws E0605.
  MappedFile(const std::string& folder, int64_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Zeros at first; unmap with munmap. Throws E0605.   Requires: multiples of pageBytes().
  char* map(int64_t offset, int64_t bytes) const;
  /// Room for these bytes, where the file grows. Throws E0605.
  void reserve(int64_t offset, int64_t bytes) const;
  /// Gives the room of these bytes back to the file system, where it can take it; their contents are lost.
  void discard(int64_t offset, int64_t bytes) const;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  int file_ = -1;
};

int64_t pageBytes();
/// Brings mapped pages into the process's resident set. writes: ready to be written. Throws E0605 when they cannot be
/// read.
void fetchPages(char* begin, int64_t bytes, bool writes);
/// Takes them out of it; their contents stay in the file (or the system's cache of it).
void releasePages(char* begin, int64_t bytes);

}  // namespace abele::runtime
