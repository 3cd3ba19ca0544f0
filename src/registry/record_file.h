// Records as files. A running program holds a kernel lock on its file. The lock ends with the process, even if the
// process crashes. A file without a lock is a leftover: it is never shown, and the user's next program removes it.
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
  /// Gives up the descriptor without closing it.
  void release() { number_ = -1; }

 private:
  int number_;
};

/// The folders where registries are, preferred one first: ABELE_REGISTRY, or /dev/shm and /tmp. Empty if the variable
/// is "off". The registry of a user is the folder abele-UID in one of them.
std::vector<std::string> basesOfRegistries();
/// This user's registry; it is created if missing. Refuses a folder of another user and one that others may write to.
/// why: the reason if the result is not open.
Descriptor ownRegistry(std::string* path, std::string* why);

/// The file of one record, mapped into memory.   Threads: one caller at a time.
class RecordFile {
 public:
  RecordFile() = default;
  /// Makes the file in this folder, under a name that begins with the process id. Not open if it cannot be made.
  RecordFile(std::string folder, const Descriptor& at, std::span<const std::byte> record);
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&& other) noexcept;
  /// Removes the file, except in a forked child: the file is the parent's.
  ~RecordFile();

  bool isOpen() const { return bytes_ != nullptr; }
  std::byte* bytes() const { return bytes_; }
  size_t size() const { return size_; }
  /// Whether the folder still has the file. False in a forked child.
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
  int64_t pid = 0;      // process that has the lock
  int64_t user_id = 0;  // owner of the file
  std::vector<std::byte> bytes;
};
/// Calls visit(record) for every file that another process holds, of all users whose registries can be read. Skips
/// files of other kinds, sizes and owners. Throws only what visit throws.
void forEachHeldRecord(const std::function<void(HeldRecord record)>& visit);
/// Removes the records of this user's dead processes.
void removeDeadRecords(const Descriptor& registry);

/// While this object lives, no other process of the user chooses devices, unless this one takes longer than two
/// seconds.
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
