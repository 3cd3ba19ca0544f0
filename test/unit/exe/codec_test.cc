#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "exe/executable.h"

namespace abele::exe {
namespace {

// One of everything.
Executable makeExecutable() {
  Executable e;
  e.training = true;
  e.device_iterations = 2;
  e.accumulation = 3;
  e.micro_batches = 6;
  e.random_draws = 4;
  e.groups = {{GroupKind::kPersistent, 0, 1, 256, "persistent/worker0"},
              {GroupKind::kInput, -1, 6, 0, "input/0"},
              {GroupKind::kOutput, -1, 6, 0, "output/0"}};
  e.slots = {{0, 64, contiguousType(DType::kFloat32, {2, 3}), "w"},
             {1, 0, contiguousType(DType::kInt64, {4}), "x"},
             {2, 0, {DType::kBFloat16, {2, 2}, {1, 2}}, "result0"}};
  Arg complex;
  complex.kind = Arg::Kind::kNumber;
  complex.number_kind = Arg::Kind::kComplex;
  complex.d = -0.5;
  complex.d2 = 1e300;
  Arg doubles;
  doubles.kind = Arg::Kind::kDoubleList;
  doubles.doubles = {0.1, -0.0};
  Arg strings;
  strings.kind = Arg::Kind::kStringList;
  strings.strings = {"a", std::string("b\0c", 3)};
  Instruction all{.op = "aten::op",
                  .args = {Arg::id(0), Arg::idList({0, 1, -1}), Arg::intList({-1, 1 << 30}), complex, doubles, strings,
                           Arg::string("none"), Arg::boolean(true), Arg::none()}};
  all.results = {{0}, {-1, 2}, {}};
  all.writes = {0};
  all.random_draws = 4;
  all.random_offset = 0;
  all.source = 1;
  e.segments = {{0, Direction::kForward, "fwd/0", {all}}, {0, Direction::kUpdate, "update/0", {}, 1}};
  e.workers = {{3, {{0, 0, {}}, {1, 5, {{0, 6}}}}}, {1, {}, 1}};
  e.replicas = 2;
  e.processes = 3;
  e.input_part = {0, 1};
  e.externals = {{"w", ExternalKind::kParameter, 0, -1, 0, {0, 1}}, {"step", ExternalKind::kState, -1, 0, 1.5}};
  e.input_slots = {1, -1};
  e.output_slots = {2, -1};
  e.sources = {"net.py:1", "net.py:2"};
  return e;
}

// Either a good executable or E0501; anything else fails the test.
bool isRefused(const std::string& bytes) {
  try {
    EXPECT_EQ(verify(decode(bytes)), std::vector<std::string>{});
    return false;
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0501) << error.what();
    return true;
  }
}

constexpr size_t kHeaderBytes = 28, kChecksumAt = 20;

std::string withChecksum(std::string bytes) {
  const uint64_t checksum = XXH64(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes, 0);
  std::memcpy(bytes.data() + kChecksumAt, &checksum, sizeof checksum);
  return bytes;
}

TEST(Codec, DecodeIsTheInverseOfEncode) {
  const Executable executable = makeExecutable();
  ASSERT_EQ(verify(executable), std::vector<std::string>{});
  EXPECT_EQ(decode(encode(executable)), executable);
  EXPECT_EQ(encode(decode(encode(executable))), encode(executable));
  EXPECT_EQ(print(decode(encode(executable))), print(executable));
}

TEST(Codec, RefusesEveryTruncation) {
  const std::string bytes = encode(makeExecutable());
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_TRUE(isRefused(bytes.substr(0, n))) << n;
  EXPECT_TRUE(isRefused(bytes + '\0'));
}

TEST(Codec, RefusesEveryDamagedByte) {
  const std::string bytes = encode(makeExecutable());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_TRUE(isRefused(damaged)) << i;
  }
}

// Damage that the checksum does not see: decode must refuse it or return something that a runtime can trust.
TEST(Codec, SurvivesForgedContents) {
  const std::string bytes = encode(makeExecutable());
  std::mt19937_64 random(7);
  int refused = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string forged = bytes;
    for (uint64_t i = 0, n = 1 + random() % 4; i < n; ++i) {
      const size_t at = kHeaderBytes + random() % (forged.size() - kHeaderBytes);
      forged[at] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    refused += isRefused(withChecksum(forged));
  }
  EXPECT_GT(refused, 1000);
}

TEST(Codec, RefusesAnotherVersion) {
  std::string bytes = encode(makeExecutable());
  bytes[8] = 1;
  try {
    decode(bytes);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("version"), std::string::npos) << error.what();
  }
}

TEST(VerifyExecutable, ReportsAllContradictions) {
  Executable executable = makeExecutable();
  executable.slots[0].offset_bytes = 256;
  executable.workers[0].actions[1].waits[0].segment = 9;
  executable.input_slots[0] = 2;
  EXPECT_EQ(verify(executable),
            (std::vector<std::string>{"slot 0: ends behind its group of 256 bytes", "worker 0: waits for segment 9",
                                      "input slot 2 is in a group of another kind"}));
}

}  // namespace
}  // namespace abele::exe
