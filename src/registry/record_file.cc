#include "registry/record_file.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cat.h"
#include "base/environment.h"
#include "registry/record.h"

namespace abele::registry {
namespace {

constexpr std::string_view kPrefix = "abele-";
constexpr const char* kTurnFile = "choosing";
constexpr int kAttempts = 16;  // until a name is free, or a record is seen whole

template <class Fn>
auto again(Fn&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::optional<int64_t> numberIn(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0 ? std::optional(number) : std::nullopt;
}

/// The process that made a file, from its name "1234-0".
std::optional<int64_t> makerOf(std::string_view name) {
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos || !numberIn(name.substr(dash + 1))) return std::nullopt;
  return numberIn(name.substr(0, dash));
}

template <class Fn>
void forEachName(int folder, const Fn& fn) {
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = own < 0 ? nullptr : ::fdopendir(own);
  if (!entries) {
    if (own >= 0) ::close(own);
    return;
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries)) names.emplace_back(entry->d_name);
  ::closedir(entries);
  for (const std::string& name : names) fn(name);
}

/// True for a folder of this user that no other user may write to.
bool isTrusted(const Descriptor& folder, int64_t user_id) {
  struct stat status {};
  return ::fstat(folder.get(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == user_id &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

Descriptor openFolder(const std::string& path) {
  return Descriptor(again([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
}

struct flock wholeFile(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Locks for the process, not for the open file. A forked child does not have the lock, so readers see when the parent
// dies. The lock ends when this process closes any other descriptor of the file, so a process never opens its own files
// again.
bool lock(int file) {
  struct flock request = wholeFile(F_WRLCK);
  return again([&] { return ::fcntl(file, F_SETLK, &request); }) == 0;
}

/// The process that has the lock, or 0; it does not take the lock. fallback: returned for a process that this one
/// cannot see.
int64_t holderOf(int file, int64_t fallback) {
  struct flock request = wholeFile(F_RDLCK);
  if (again([&] { return ::fcntl(file, F_GETLK, &request); }) != 0 || request.l_type == F_UNLCK) return 0;
  return request.l_pid > 0 ? request.l_pid : fallback;
}

std::optional<std::vector<std::byte>> readAll(int file, size_t size) {
  std::vector<std::byte> bytes(size);
  const ssize_t n = again([&] { return ::pread(file, bytes.data(), size, 0); });
  return n == static_cast<ssize_t>(size) ? std::optional(std::move(bytes)) : std::nullopt;
}

/// A consistent copy of a record. If its writer died while writing, the record is returned as it is.
std::optional<std::vector<std::byte>> readRecordBytes(int file, size_t size) {
  std::optional<std::vector<std::byte>> bytes;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bytes = readAll(file, size);
    if (!bytes) return std::nullopt;
    int64_t before = 0, after = 0;
    constexpr size_t kAt = offsetof(RecordHeader, sequence);
    std::memcpy(&before, bytes->data() + kAt, sizeof before);
    if (again([&] { return ::pread(file, &after, sizeof after, kAt); }) != sizeof after) return std::nullopt;
    if (before == after && before % 2 == 0) break;
  }
  return bytes;
}

void visitRegistry(const Descriptor& folder, int64_t user_id, const std::function<void(HeldRecord)>& visit) {
  forEachName(folder.get(), [&](const std::string& name) {
    const std::optional<int64_t> maker = makerOf(name);
    if (!maker || *maker == ::getpid()) return;
    const Descriptor file(
        ::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    struct stat status {};
    if (!file.isOpen() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != user_id)
      return;
    const auto size = static_cast<size_t>(status.st_size);
    if (size < recordBytes(0) || size > recordBytes(kMostDevicesOfRecord)) return;
    const int64_t pid = holderOf(file.get(), *maker);
    if (pid == 0) return;
    if (std::optional<std::vector<std::byte>> bytes = readRecordBytes(file.get(), size))
      visit({.pid = pid, .user_id = user_id, .bytes = *std::move(bytes)});
  });
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}
Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

std::vector<std::string> basesOfRegistries() {
  const std::string asked = environmentText("ABELE_REGISTRY");
  if (asked == "off") return {};
  if (!asked.empty()) return {asked};
  return {"/dev/shm", "/tmp"};  // memory first, because every step writes the counters
}

Descriptor ownRegistry(std::string* path, std::string* why) {
  const auto user_id = static_cast<int64_t>(::geteuid());
  for (const std::string& base : basesOfRegistries()) {
    *path = cat(base, "/", kPrefix, user_id);
    const bool made = ::mkdir(path->c_str(), 0755) == 0 || errno == EEXIST;
    const std::string error = made ? "" : std::strerror(errno);
    Descriptor folder = openFolder(*path);
    if (folder.isOpen() && isTrusted(folder, user_id)) {
      if (::faccessat(folder.get(), ".", W_OK | X_OK, AT_EACCESS) == 0) return folder;
      *why += cat(why->empty() ? "" : "; ", *path, ": ", std::strerror(errno));
      continue;
    }
    *why += cat(why->empty() ? "" : "; ", *path, ": ",
                !error.empty()    ? error
                : folder.isOpen() ? "another user's, or others may write to it"
                                  : std::strerror(errno));
  }
  return Descriptor();
}

// --- RecordFile ------------------------------------------------------------------------------------------------------
RecordFile::RecordFile(std::string folder, const Descriptor& at, std::span<const std::byte> record)
    : size_(record.size()), process_(::getpid()) {
  static std::atomic<int64_t> number{0};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string name = cat(process_, "-", number.fetch_add(1));
    // Other users may read the file once it is locked and complete.
    Descriptor file(again([&] {
      return ::openat(at.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    }));
    if (!file.isOpen() && errno == EEXIST) continue;
    if (!file.isOpen()) return;
    // Before we hold the lock, another process may have removed the file as a leftover.
    struct stat status {};
    if (!lock(file.get()) || ::fstat(file.get(), &status) != 0 || status.st_nlink == 0) continue;
    const auto size = static_cast<off_t>(size_);
    // Allocate the page now: the first write to a page without memory would end the process.
    void* memory = MAP_FAILED;
    if (::posix_fallocate(file.get(), 0, size) == 0)
      memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) {
      ::unlinkat(at.get(), name.c_str(), 0);
      return;
    }
    std::memcpy(memory, record.data(), size_);
    ::fchmod(file.get(), S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
    bytes_ = static_cast<std::byte*>(memory);
    path_ = cat(folder, "/", name);
    device_ = status.st_dev;
    inode_ = status.st_ino;
    file_ = std::move(file);
    return;
  }
}

RecordFile::RecordFile(RecordFile&& other) noexcept { *this = std::move(other); }
RecordFile& RecordFile::operator=(RecordFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  std::swap(process_, other.process_);
  return *this;
}

// A program that becomes a daemon closes all descriptors, and their numbers are then reused for other files.
bool RecordFile::isOwn(int file) const {
  struct stat status {};
  return ::fstat(file, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

bool RecordFile::isThere() const {
  struct stat status {};
  return process_ == ::getpid() && isOwn(file_.get()) && ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0;
}

RecordFile::~RecordFile() {
  if (!isOpen()) return;
  if (isThere()) ::unlink(path_.c_str());
  if (!isOwn(file_.get())) file_.release();
  ::munmap(bytes_, size_);
}

// --- folders ---------------------------------------------------------------------------------------------------------
void forEachHeldRecord(const std::function<void(HeldRecord)>& visit) {
  for (const std::string& base_path : basesOfRegistries()) {
    const Descriptor base(again([&] { return ::open(base_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!base.isOpen()) continue;
    forEachName(base.get(), [&](const std::string& name) {
      if (!name.starts_with(kPrefix)) return;
      const std::optional<int64_t> user_id = numberIn(std::string_view(name).substr(kPrefix.size()));
      if (!user_id) return;
      const Descriptor folder = openFolder(cat(base_path, "/", name));
      if (folder.isOpen() && isTrusted(folder, *user_id)) visitRegistry(folder, *user_id, visit);
    });
  }
}

void removeDeadRecords(const Descriptor& registry) {
  forEachName(registry.get(), [&](const std::string& name) {
    const std::optional<int64_t> maker = makerOf(name);
    if (!maker || *maker == ::getpid()) return;
    const Descriptor file(::openat(registry.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (file.isOpen() && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && lock(file.get()))
      ::unlinkat(registry.get(), name.c_str(), 0);
  });
}

ChoosingTurn::ChoosingTurn(const Descriptor& registry)
    : file_(::openat(registry.get(), kTurnFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                     S_IRUSR | S_IWUSR)) {
  using std::chrono::steady_clock;
  const steady_clock::time_point end = steady_clock::now() + std::chrono::seconds(2);
  while (file_.isOpen() && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (steady_clock::now() >= end) return;  // the owner may have been stopped; programs must still run
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ChoosingTurn::~ChoosingTurn() {
  // A child that was forked meanwhile has the same open file. Closing it here would leave the lock with the child.
  if (file_.isOpen()) ::flock(file_.get(), LOCK_UN);
}

}  // namespace abele::registry
