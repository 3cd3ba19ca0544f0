// A file that is read in pieces, at any position. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

namespace abele {

/// Threads: safe.
class OpenFile {
 public:
  /// Refuses a folder, pipe, socket or device without waiting for it. Throws E0712 when the file cannot be read.
  explicit OpenFile(std::string path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& path() const { return path_; }
  /// The size when the file was opened.   Units: bytes.
  uint64_t size() const { return size_; }
  /// Fills `into`. Reads the file and does not map it: if a mapped file became shorter, an access to its pages would
  /// end the process, and mapped pages would count as memory of the process. Throws E0712.
  void read(uint64_t begin, char* into, uint64_t bytes) const;

 private:
  std::string path_;
  int file_ = -1;
  uint64_t size_ = 0;
};

/// The kind of a path that is not an ordinary file: "a folder", "a pipe".
const char* fileKind(mode_t mode);

}  // namespace abele
