// Reading records: accepts only records of this version's programs, and reads no more than they hold.
#include "registry/record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace abele::registry {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

Attached twoDevices() {
  return {.pid = 4711,
          .command = "python train.py",
          .model = "bert",
          .is_training = true,
          .devices = {{.id = 2, .target = "cpu"}, {.id = 3, .target = "cuda:1"}}};
}

std::vector<std::byte> withField(std::vector<std::byte> bytes, size_t at, int64_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

TEST(Record, IsReadAsItWasWritten) {
  const std::vector<std::byte> bytes = newRecord(twoDevices(), 5 * kSecond);
  const std::optional<Attached> read = readRecord(bytes, 65 * kSecond);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->pid, 4711);
  EXPECT_EQ(read->command, "python train.py");
  EXPECT_EQ(read->model, "bert");
  EXPECT_TRUE(read->is_training);
  EXPECT_FALSE(read->is_exclusive);
  EXPECT_EQ(read->attached_ns, 60 * kSecond);
  ASSERT_EQ(read->devices.size(), 2u);
  EXPECT_EQ(read->devices[1].id, 3);
  EXPECT_EQ(read->devices[1].target, "cuda:1");
}

TEST(Record, CountsStepsAndWhatDevicesDidLately) {
  std::vector<std::byte> bytes = newRecord(twoDevices(), 0);
  RecordWriter writer(bytes.data());
  const auto step = [&](int64_t end_ns, int64_t first, int64_t second, bool completed = true) {
    writer.beginStep();
    writer.endStep(std::vector<int64_t>{first, second}, completed, end_ns);
  };
  // The first device is busy for ten seconds, and idle for the next ten.
  for (int64_t s = 1; s <= 10; ++s) step(s * kSecond, kSecond, kSecond / 4);
  EXPECT_EQ(readRecord(bytes, 10 * kSecond)->steps, 10);
  EXPECT_DOUBLE_EQ(readRecord(bytes, 10 * kSecond)->devices[0].load, 1);
  EXPECT_DOUBLE_EQ(readRecord(bytes, 10 * kSecond)->devices[1].load, 0.25);
  EXPECT_EQ(readRecord(bytes, 10 * kSecond)->devices[1].busy_ns, 10 * kSecond / 4);
  for (int64_t s = 11; s <= 20; ++s) step(s * kSecond, 0, kSecond / 2);
  EXPECT_DOUBLE_EQ(readRecord(bytes, 20 * kSecond)->devices[0].load, 0);
  EXPECT_DOUBLE_EQ(readRecord(bytes, 20 * kSecond)->devices[1].load, 0.5);
  // One second after the last step the load is 0. While a step runs, the load does not change.
  EXPECT_DOUBLE_EQ(readRecord(bytes, 22 * kSecond)->devices[1].load, 0);
  writer.beginStep();
  EXPECT_DOUBLE_EQ(readRecord(bytes, 99 * kSecond)->devices[1].load, 0.5);
  writer.endStep({}, /*completed=*/false, 99 * kSecond);
  EXPECT_EQ(readRecord(bytes, 99 * kSecond)->steps, 20);
}

TEST(Record, GoesOnInACopy) {
  std::vector<std::byte> bytes = newRecord(twoDevices(), 0);
  RecordWriter writer(bytes.data());
  writer.endStep(std::vector<int64_t>{kSecond, 0}, true, kSecond);
  std::vector<std::byte> copy = bytes;
  RecordWriter next = writer.movedTo(copy.data());
  next.endStep(std::vector<int64_t>{kSecond, 0}, true, 2 * kSecond);
  EXPECT_EQ(readRecord(copy, 2 * kSecond)->steps, 2);
  EXPECT_DOUBLE_EQ(readRecord(copy, 2 * kSecond)->devices[0].load, 1);
  EXPECT_EQ(readRecord(bytes, 2 * kSecond)->steps, 1);
}

TEST(Record, TextsAreCutAndHaveNoControlCharacters) {
  Attached attached = twoDevices();
  attached.command = "a\x1b[2Jb\nc\xff";
  attached.model = std::string(1000, 'm');
  attached.devices[0].target = std::string(1000, 't');
  const std::optional<Attached> read = readRecord(newRecord(attached, 0), 0);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->command, "a?[2Jb?c?");
  EXPECT_EQ(read->model, std::string(63, 'm'));
  EXPECT_EQ(read->devices[0].target, std::string(15, 't'));
}

TEST(Record, OfAnotherKindIsNone) {
  const std::vector<std::byte> bytes = newRecord(twoDevices(), 0);
  EXPECT_FALSE(readRecord({}, 0));
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(readRecord(std::span(bytes).first(size), 0)) << size;
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(readRecord(longer, 0));
  EXPECT_FALSE(readRecord(withField(bytes, 0, 0), 0)) << "magic";
  EXPECT_FALSE(readRecord(withField(bytes, 8, -1), 0)) << "version and number of devices";
  EXPECT_FALSE(readRecord(withField(bytes, offsetof(RecordHeader, pid), -1), 0));
  EXPECT_FALSE(readRecord(withField(bytes, offsetof(RecordHeader, steps), -1), 0));
  EXPECT_FALSE(readRecord(withField(bytes, offsetof(RecordHeader, ended_ns), INT64_MIN), 0));
  EXPECT_FALSE(readRecord(withField(bytes, recordBytes(1) + offsetof(DeviceRecord, id), INT64_MAX), 0));
  EXPECT_FALSE(readRecord(withField(bytes, recordBytes(0) + offsetof(DeviceRecord, busy_ns), INT64_MIN), 0));
}

TEST(Record, DamagedBytesAreReadSafelyOrNotAtAll) {
  std::mt19937_64 random(5);
  const std::vector<std::byte> good = newRecord(twoDevices(), kSecond);
  int64_t num_read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = good;
    for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const std::optional<Attached> read = readRecord(bytes, static_cast<int64_t>(random() >> 1));
    if (!read) continue;
    ++num_read;
    ASSERT_EQ(read->devices.size(), 2u);
    for (const AttachedDevice& device : read->devices) {
      ASSERT_GE(device.load, 0);
      ASSERT_LE(device.load, 1);
      ASSERT_GE(device.id, 0);
    }
  }
  EXPECT_GT(num_read, 0);
}

}  // namespace
}  // namespace abele::registry
