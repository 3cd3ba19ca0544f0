// The record of the devices of a program: the bytes of a file that other processes read while the program runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace abele::registry {

/// A device that a program has attached.
struct AttachedDevice {
  int64_t id = 0;
  std::string target;   // "cpu", "cuda:0"
  int64_t busy_ns = 0;  // time that it computed since it was attached
  double load = 0;      // share of recent time that it computed, 0..1
};
/// A model that has devices, in some program.
struct Attached {
  int64_t pid = 0;
  int64_t user_id = 0;
  std::string command, model;
  bool is_training = false;
  bool is_exclusive = false;  // programs that want devices of their own do not get these
  int64_t attached_ns = 0;    // time since it attached
  int64_t steps = 0;          // completed calls
  std::vector<AttachedDevice> devices;
};

/// The file holds this, then a DeviceRecord for each device. Numbers have the byte order of the machine; no other
/// machine reads them.
struct RecordHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t num_devices;
  int64_t pid;
  int64_t since_ns;  // steady_clock's, which all processes share
  uint8_t is_training, is_exclusive;
  std::array<char, 6> unused;
  std::array<char, 64> command, model;
  // Counters that the program writes while others read them.
  int64_t sequence;  // odd while the other counters change
  int64_t steps;
  int64_t is_running;  // nonzero while a step runs
  int64_t window_ns;   // start of the window that load counts from
  int64_t ended_ns;    // end of the last step
};
struct DeviceRecord {
  int64_t id;
  std::array<char, 16> target;
  int64_t busy_ns;
  int64_t window_busy_ns;  // busy_ns at the start of the window
};
static_assert(std::is_trivially_copyable_v<RecordHeader> && std::is_trivially_copyable_v<DeviceRecord>);
static_assert(sizeof(RecordHeader) == 208 && sizeof(DeviceRecord) == 40);

constexpr size_t kMostDevicesOfRecord = 4096;
constexpr size_t recordBytes(size_t num_devices) { return sizeof(RecordHeader) + num_devices * sizeof(DeviceRecord); }

/// The record of a program that has just attached. Texts that are too long are cut.
std::vector<std::byte> newRecord(const Attached& attached, int64_t now_ns);
/// Reads a record. The bytes may be from an untrusted file: returns nothing unless a program of this version wrote
/// them. now_ns: of steady_clock.
std::optional<Attached> readRecord(std::span<const std::byte> bytes, int64_t now_ns);

/// Writes the counters of a record while other processes read them.   Threads: one.
class RecordWriter {
 public:
  RecordWriter() = default;
  /// Requires: a record of newRecord() at this address, for as long as the writer is used.
  explicit RecordWriter(std::byte* record);
  /// A writer that continues in a copy of the record.
  RecordWriter movedTo(std::byte* record) const;

  void beginStep();
  /// busy_ns: the time that each device computed in the step. completed: it counts as a step.
  void endStep(std::span<const int64_t> busy_ns, bool completed, int64_t now_ns);

 private:
  RecordHeader* header_ = nullptr;
  DeviceRecord* devices_ = nullptr;
  int64_t next_window_ns_ = 0;
  std::vector<int64_t> next_window_busy_ns_;
};

}  // namespace abele::registry
