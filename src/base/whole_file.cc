#include "base/whole_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/error.h"
#include "base/open_file.h"

namespace abele {
namespace {

constexpr std::string_view kPrefix = ".abele-";
constexpr std::string_view kSuffix = ".part";
constexpr int kAttempts = 16;  // until a name is free; more than one attempt is a collision of 64 random bits

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  bool isOpen() const { return number_ >= 0; }

 private:
  int number_;
};

template <class Fn>
auto again(Fn&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

[[noreturn]] void refuseWrite(const std::string& path, std::string found) {
  throwUser(ErrorCode::E0712, {.what = "a file cannot be written",
                               .at = path,
                               .found = std::move(found),
                               .remedy = "check the folder's permissions and the space on the disk"});
}

int64_t memoryBytes() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return INT64_MAX;
  return static_cast<int64_t>((info.totalram + info.totalswap) * info.mem_unit);
}

bool writeAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = again([&] { return ::write(file, bytes.data(), bytes.size()); });
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::pair<std::string, std::string> folderAndName(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

Descriptor openFolder(const std::string& folder) {
  return Descriptor(again([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
}

std::string newName() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) number = static_cast<uint64_t>(::getpid());
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return cat(kPrefix, text.data(), kSuffix);
}

bool isOurs(std::string_view name) {
  return name.size() == kPrefix.size() + 16 + kSuffix.size() && name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

// The writer of a partial file holds a lock on it. A free lock means that its process is gone, on whichever host it
// ran.
void removeLeftoversIn(int folder) {
  // Opened again, not duplicated: reading a duplicate would move the position of `folder`.
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = own < 0 ? nullptr : ::fdopendir(own);
  if (!entries) {
    if (own >= 0) ::close(own);
    return;
  }
  while (const dirent* entry = ::readdir(entries)) {
    if (!isOurs(entry->d_name)) continue;
    const Descriptor file(::openat(folder, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.isOpen() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder, entry->d_name, 0);
  }
  ::closedir(entries);
}

/// A file with a temporary name of its own in a folder. It is removed again unless it is renamed.
class PartialFile {
 public:
  explicit PartialFile(int folder) : folder_(folder) {
    for (int attempt = 0; attempt < kAttempts && !file_.isOpen(); ++attempt) {
      name_ = newName();
      file_ = Descriptor(::openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
      if (!file_.isOpen() && errno != EEXIST && errno != EINTR) return;
      // Before we hold the lock, another process may have removed the file as a leftover.
      if (file_.isOpen() && !(again([&] { return ::flock(file_.get(), LOCK_EX); }) == 0 && isThere()))
        file_ = Descriptor();
    }
  }
  ~PartialFile() {
    if (file_.isOpen() && !renamed_) ::unlinkat(folder_, name_.c_str(), 0);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  bool isOpen() const { return file_.isOpen(); }
  bool write(std::string_view bytes) const { return writeAll(file_.get(), bytes); }
  bool flush() const {
    return again([&] { return ::fsync(file_.get()); }) == 0;
  }
  bool rename(const std::string& name) {
    renamed_ = ::renameat(folder_, name_.c_str(), folder_, name.c_str()) == 0;
    return renamed_;
  }

 private:
  bool isThere() const {
    struct stat status {};
    return ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0;
  }

  int folder_;
  std::string name_;
  Descriptor file_;
  bool renamed_ = false;
};

// True if the file system does not support fsync of folders. Some (FUSE, SMB) do not; the rename is still valid.
bool isNoFlush(int error) { return error == EINVAL || error == ENOTSUP || error == EBADF; }

}  // namespace

std::string readWholeFile(const std::string& path, std::string_view magic, int64_t most_bytes) {
  const OpenFile file(path);
  const uint64_t size = file.size();
  const auto most = static_cast<uint64_t>(most_bytes >= 0 ? most_bytes : memoryBytes());
  std::string bytes(std::min<uint64_t>(magic.size(), size), '\0');
  file.read(0, bytes.data(), bytes.size());
  ABELE_REQUIRE(bytes == magic, E0501,
                {.what = "a file of another format",
                 .at = path,
                 .found = cat(size, " bytes that begin with \"", bytes, "\""),
                 .expected = cat("a file that begins with \"", magic, "\""),
                 .remedy = "pass the file that Abele wrote, or write it again"});
  ABELE_REQUIRE(size <= most, E0712,
                {.what = "a file is too large",
                 .at = path,
                 .found = cat(size, " bytes"),
                 .remedy = cat("pass a file of at most ", most, " bytes")});
  bytes.resize(size);
  file.read(magic.size(), bytes.data() + magic.size(), size - magic.size());
  return bytes;
}

void writeWholeFile(const std::string& path, std::string_view bytes) {
  writeWholeFile(path, [&](const WritePart& write) { write(bytes); });
}

void writeWholeFile(const std::string& path, const std::function<void(const WritePart& write)>& parts) {
  if (path.find('\0') != path.npos) refuseWrite(path, "a zero byte in the name, which the system takes for its end");
  const auto [folder_name, name] = folderAndName(path);
  const Descriptor folder = openFolder(folder_name);
  if (!folder.isOpen()) refuseWrite(path, cat(folder_name, ": ", std::strerror(errno)));
  struct stat status {};
  if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(status.st_mode) &&
      !S_ISLNK(status.st_mode))
    refuseWrite(path, fileKind(status.st_mode));
  removeLeftoversIn(folder.get());
  PartialFile file(folder.get());
  const auto require = [&](bool done) {
    if (!done) refuseWrite(path, std::strerror(errno));
  };
  require(file.isOpen());
  parts([&](std::string_view bytes) { require(file.write(bytes)); });
  require(file.flush() && file.rename(name));
  if (::fsync(folder.get()) != 0 && !isNoFlush(errno)) refuseWrite(path, std::strerror(errno));
}

void removeLeftovers(const std::string& folder) {
  const Descriptor open = openFolder(folder);
  if (open.isOpen()) removeLeftoversIn(open.get());
}

}  // namespace abele
