#include "base/open_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace abele {
namespace {

constexpr uint64_t kMostAtOnce = uint64_t{1} << 30;  // bytes in one call; Linux reads less than 2 GiB at once

[[noreturn]] void refuse(const std::string& path, std::string found, std::string remedy) {
  throwUser(ErrorCode::E0712,
            {.what = "a file cannot be read", .at = path, .found = std::move(found), .remedy = std::move(remedy)});
}

constexpr const char* kRemedy = "check that the file exists and may be read";

}  // namespace

const char* fileKind(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a file";
}

OpenFile::OpenFile(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != path_.npos)
    refuse(path_, "a zero byte in the name, which the system takes for its end", kRemedy);
  // O_NONBLOCK, because a pipe may have no writer.
  do file_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  while (file_ < 0 && errno == EINTR);
  if (file_ < 0) refuse(path_, std::strerror(errno), kRemedy);
  struct stat status {};
  const int error = ::fstat(file_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(file_);
  error != 0 ? refuse(path_, std::strerror(error), kRemedy)
             : refuse(path_, fileKind(status.st_mode), "name an ordinary file");
}

OpenFile::~OpenFile() { ::close(file_); }

void OpenFile::read(uint64_t begin, char* into, uint64_t bytes) const {
  while (bytes > 0) {
    const ssize_t n = ::pread(file_, into, std::min(bytes, kMostAtOnce), static_cast<off_t>(begin));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) refuse(path_, n < 0 ? std::strerror(errno) : "it became shorter meanwhile", kRemedy);
    begin += static_cast<uint64_t>(n);
    into += n;
    bytes -= static_cast<uint64_t>(n);
  }
}

}  // namespace abele
