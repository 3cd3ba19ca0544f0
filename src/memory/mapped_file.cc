#include "memory/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"

namespace abele::memory {
namespace {

constexpr long kTmpfs = 0x01021994;
// Linux 5.14; older C libraries do not define them.
constexpr int kPopulateRead = 22, kPopulateWrite = 23;
// Pages are brought in this many bytes at a time, so that other mappings of the process can change in between.
constexpr int64_t kWindowBytes = int64_t{16} << 20;

bool isInMemory(const std::string& folder) {
  struct statfs system {};
  return ::statfs(folder.c_str(), &system) == 0 && system.f_type == kTmpfs;
}

// The system's temporary folder. A folder in memory would not save any of the host's memory, so /var/tmp replaces it.
std::string temporaryFolder() {
  const char* chosen = std::getenv("TMPDIR");
  if (chosen && *chosen) return chosen;
  return isInMemory("/tmp") && ::access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

[[noreturn]] void refuse(std::string what, const std::string& folder, int error, int64_t bytes) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throwDevice(
      ErrorCode::E0605,
      {.what = std::move(what),
       .at = folder,
       .found = std::strerror(error),
       .expected = cat(bytes, " bytes for off-chip tensors"),
       .remedy = cat(full ? "use a folder with more space" : "use a folder that exists and can be written", " in ",
                     inLanguage("Options::offChipFolder"),
                     full ? cat(", raise ", inLanguage("Options::offChipMemoryLimit"),
                                ", or keep more tensors on the device (", inLanguage("Options::TensorLocations()"), ")")
                          : std::string())});
}

int openNameless(const std::string& folder) {
#ifdef O_TMPFILE
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
#endif
  // The file system has no nameless files, so between these two lines the file has a name.
  std::string path = folder + "/abele-off-chip-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(path.c_str());
  return named;
}

// Touches one element of every page, for kernels that cannot populate.
void touch(volatile char* begin, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += pageBytes()) (void)begin[at];
}

}  // namespace

MappedFile::MappedFile(const std::string& folder, int64_t bytes)
    : folder_(folder.empty() ? temporaryFolder() : folder), file_(openNameless(folder_)) {
  if (file_ < 0) refuse("a file for off-chip tensors cannot be made", folder_, errno, bytes);
  // All at once: a file that grew as pages are written could fail in the middle of a step.
  try {
    reserve(0, bytes);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

void MappedFile::reserve(int64_t offset, int64_t bytes) const {
  int error = 0;
  do error = bytes > 0 ? ::posix_fallocate(file_, offset, bytes) : 0;
  while (error == EINTR);
  if (error != 0) refuse("the file for off-chip tensors does not fit", folder_, error, offset + bytes);
}

void MappedFile::discard(int64_t offset, int64_t bytes) const {
#ifdef FALLOC_FL_PUNCH_HOLE
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
#endif
}

MappedFile::~MappedFile() {
  if (file_ >= 0) ::close(file_);
}

char* MappedFile::map(int64_t offset, int64_t bytes) const {
  void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
  if (mapped == MAP_FAILED) refuse("the file for off-chip tensors cannot be mapped", folder_, errno, bytes);
  return static_cast<char*>(mapped);
}

int64_t pageBytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

void fetchPages(char* begin, int64_t bytes, bool writes) {
  for (int64_t at = 0; at < bytes; at += kWindowBytes) {
    char* chunk = begin + at;
    const int64_t size = std::min(kWindowBytes, bytes - at);
    if (::madvise(chunk, static_cast<size_t>(size), writes ? kPopulateWrite : kPopulateRead) == 0) continue;
    if (errno == EINVAL || errno == ENOSYS) {
      touch(chunk, size);
    } else if (errno != EINTR && errno != EAGAIN) {
      // Pages that are not brought in now come one by one when they are used; a page that cannot be read would kill the
      // process then.
      refuse("off-chip tensors cannot be read back", "", errno, size);
    }
  }
}

void releasePages(char* begin, int64_t bytes) {
  if (bytes > 0) ::madvise(begin, static_cast<size_t>(bytes), MADV_DONTNEED);
}

}  // namespace abele::memory
