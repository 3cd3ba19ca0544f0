// What a program writes down of the devices that it has: the bytes of a file that others read while it runs.
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
  int64_t busy_ns = 0;  // that it computed since it was attached
  double load = 0;      // share of the time that it computed lately, 0..1
};
/// A model of a program that has devices.
struct Attached {
  int64_t pid = 0;
  int64_t user_id = 0;
  std::string command, model;
  bool is_training = false;
  bool is_exclusive = false;  // no program that asks for devices of its own gets these
  int64_t attached_ns = 0;    // for so long
  int64_t steps = 0;          // calls that were completed
  std::vector<AttachedDevice> devices;
};

/// The file: this, then a DeviceRecord for each device. Numbers are the machine's own; no other machine reads them.
struct RecordHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t num_devices;
  int64_t pid;
  int64_t since_ns;  // steady_clock, which all processes share
  uint8_t is_training, is_exclusive;
  std::array<char, 6> unused;
  std::array<char, 64> command, model;
  // Counters, which the program writes while others read them.
  int64_t sequence;  // odd while the others change
  int64_t steps;
  int64_t is_running;  // a step is under way
  int64_t window_ns;   // load counts from here
  int64_t ended_ns;    // the last step
};
struct DeviceRecord {
  int64_t id;
  std::array<char, 16> target;
  int64_t busy_ns;
  int64_t window_busy_ns;  // busy_ns when the window began
};
static_assert(std::is_trivially_copyable_v<RecordHeader> && std::is_trivially_copyable_v<DeviceRecord>);
static_assert(sizeof(RecordHeader) == 208 && sizeof(DeviceRecord) == 40);

constexpr size_t kMostDevicesOfRecord = 4096;
constexpr size_t recordBytes(size_t num_devices) { return sizeof(RecordHeader) + num_devices * sizeof(DeviceRecord); }

/// The record of a program that has just attached. Texts that are too long are cut.
std::vector<std::byte> newRecord(const Attached& attached, int64_t now_ns);
/// Nothing for bytes that no program of this version writes: the file may be anybody's. now_ns: of steady_clock.
std::optional<Attached> readRecord(std::span<const std::byte> bytes, int64_t now_ns);

/// The counters of a record in memory that others read. Threads: one.
class RecordWriter {
 public:
  RecordWriter() = default;
  /// Requires: a record of newRecord() at this address, for as long as the writer is used.
  explicit RecordWriter(std::byte* record);
  /// Goes on in a copy of the record.
  RecordWriter movedTo(std::byte* record) const;

  void beginStep();
  /// busy_ns: what each device computed in it. completed: it counts as a step.
  void endStep(std::span<const int64_t> busy_ns, bool completed, int64_t now_ns);

 private:
  RecordHeader* header_ = nullptr;
  DeviceRecord* devices_ = nullptr;
  int64_t next_window_ns_ = 0;
  std::vector<int64_t> next_window_busy_ns_;
};

}  // namespace abele::registry
