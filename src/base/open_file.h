// A file that is read in pieces, at any place of it. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

namespace abele {

/// Threads: safe.
class OpenFile {
 public:
  /// A folder, pipe, socket or device is refused without waiting for it. Throws E0712 when the file cannot be read.
  explicit OpenFile(std::string path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& path() const { return path_; }
  /// When it was opened.   Units: bytes.
  uint64_t size() const { return size_; }
  /// Fills `into`. Read, not mapped: a file that becomes shorter is an error here, where touching what was mapped of it
  /// would end the process, and pages of the file are no memory of the process. Throws E0712.
  void read(uint64_t begin, char* into, uint64_t bytes) const;

 private:
  std::string path_;
  int file_ = -1;
  uint64_t size_ = 0;
};

/// What is in the place of an ordinary file: "a folder", "a pipe".
const char* fileKind(mode_t mode);

}  // namespace abele
