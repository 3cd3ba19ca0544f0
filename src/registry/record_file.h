// Records as files. A file of a program that lives has a lock of the kernel, which ends with the process however it
// ends: what nobody holds is a leftover, which is never shown, and which the user's next program removes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

namespace abele::registry {

/// An open file or folder.   Owns: the descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return number_; }
  bool isOpen() const { return number_ >= 0; }
  /// Without closing it.
  void release() { number_ = -1; }

 private:
  int number_;
};

/// Folders that registries lie in, the first choice first: ABELE_REGISTRY, or /dev/shm and /tmp. Empty: it is "off".
/// A registry is a folder of one user, abele-UID, in one of them.
std::vector<std::string> basesOfRegistries();
/// This user's registry, made where it is missing. A folder of another user, or one that others may write to, is none.
/// why: what is in the way where the result is not open.
Descriptor ownRegistry(std::string* path, std::string* why);

/// The file of one record, in memory that its readers see.   Threads: one caller at a time.
class RecordFile {
 public:
  RecordFile() = default;
  /// In this folder, under a name that begins with the process. Not open where it cannot be made.
  RecordFile(std::string folder, const Descriptor& at, std::span<const std::byte> record);
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&& other) noexcept;
  /// Removes the file. In a forked child it stays the parent's.
  ~RecordFile();

  bool isOpen() const { return bytes_ != nullptr; }
  std::byte* bytes() const { return bytes_; }
  size_t size() const { return size_; }
  /// Does the folder still have it? False in a forked child.
  bool isThere() const;

 private:
  bool isOwn(int file) const;

  std::string path_;
  Descriptor file_;
  std::byte* bytes_ = nullptr;
  size_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  pid_t process_ = 0;
};

/// A record that another process holds.
struct HeldRecord {
  int64_t pid = 0;      // of who has the lock
  int64_t user_id = 0;  // whose file it is
  std::vector<std::byte> bytes;
};
/// visit(record) for every file that another process holds, of all users whose registries can be read. Files of other
/// kinds, of other sizes and of other owners are passed over. Never throws but what visit throws.
void forEachHeldRecord(const std::function<void(HeldRecord record)>& visit);
/// Removes what this user's dead processes left there.
void removeDeadRecords(const Descriptor& registry);

/// While it lives no other process of the user chooses devices, unless one takes longer than two seconds.
class ChoosingTurn {
 public:
  explicit ChoosingTurn(const Descriptor& registry);
  ~ChoosingTurn();
  ChoosingTurn(const ChoosingTurn&) = delete;
  ChoosingTurn& operator=(const ChoosingTurn&) = delete;

 private:
  Descriptor file_;
};

}  // namespace abele::registry
