#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <functional>
#include <random>

#include "base/error.h"
#include "exe/bytes.h"
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
  e.normals = {.count = 5, .spare = 3};
  e.groups = {{GroupKind::kPersistent, 0, 1, 256, "persistent/worker0"},
              {GroupKind::kInput, -1, 6, 0, "input/0"},
              {GroupKind::kOutput, -1, 6, 0, "output/0"},
              {GroupKind::kStash, 0, 2, 128, "stash/0", true}};
  e.slots = {{0, 64, contiguousType(DType::kFloat32, {2, 3}), "w"},
             {1, 0, contiguousType(DType::kInt64, {4}), "x"},
             {2, 0, {DType::kBFloat16, {2, 2}, {1, 2}}, "result0"},
             {3, 0, {DType::kBFloat16, {2, 2}, {1, 2}}, "%5"},
             {0, 128, contiguousType(DType::kFloat32, {2, 2}), "columns"}};
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
  all.results = {{0}, {-1, 3}, {}};
  all.writes = {0};
  all.random_draws = 4;
  all.random_offset = 0;
  all.normals = {.count = 3, .before = 2};
  all.draws_vary = true;
  all.source = 1;
  const Instruction emit{.op = "abele::emit", .args = {Arg::id(2), Arg::id(3)}, .writes = {2}};
  e.segments = {{0, Direction::kForward, "fwd/0", {all, emit}}, {0, Direction::kUpdate, "update/0", {}, 1}};
  e.workers = {{3, {}}, {1, {{1, 2, {{0, 3}}}, {1, 5, {{0, 6}}}}, 1, /*space=*/1, /*from=*/0}};
  for (int32_t k = 0; k < 6; ++k) e.workers[0].actions.push_back({0, k, {}, {{3, k % 2, true}}, {{3, k % 2, false}}});
  e.replicas = 2;
  e.processes = 3;
  e.input_part = {0, 1};
  e.externals = {{"w", ExternalKind::kParameter, 0, -1, 0, {0, 0}, {{{4, 4}, /*dim=*/1, /*begin=*/1}}},
                 {"step", ExternalKind::kState, -1, 0, 1.5}};
  e.input_slots = {1, -1, 1, -1};
  e.output_slots = {2, 2};
  e.sources = {"net.py:1", "net.py:2"};
  return e;
}

// An instruction that adds to w the product of two slots.
Instruction& addSum(Executable& e, int32_t left, int32_t right) {
  Instruction sum{
      .op = "abele::accumulate_product", .args = {Arg::id(0), Arg::id(left), Arg::id(right)}, .writes = {0}};
  e.segments[0].instructions.push_back(std::move(sum));
  return e.segments[0].instructions.back();
}
// One that adds to it the four rows that x names.
Instruction& addRows(Executable& e) {
  e.slots[3].type = contiguousType(DType::kFloat32, {4, 3});
  e.segments[0].instructions.pop_back();  // the emission of slot 3
  Instruction sum{
      .op = "abele::accumulate_rows", .args = {Arg::id(0), Arg::id(3), Arg::id(1), Arg::integer(-1)}, .writes = {0}};
  e.segments[0].instructions.push_back(std::move(sum));
  return e.segments[0].instructions.back();
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

constexpr size_t kVersionAt = 8, kChecksumAt = 20, kHeaderBytes = 28, kIdentityBytes = 16;

// The header's checksum alone.
std::string withChecksum(std::string bytes) {
  const uint64_t checksum = XXH64(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes, 0);
  std::memcpy(bytes.data() + kChecksumAt, &checksum, sizeof checksum);
  return bytes;
}

// Everything that the writer would have written around these fields.
std::string sealedAgain(const std::string& bytes) {
  uint32_t version = 0;
  std::memcpy(&version, bytes.data() + kVersionAt, sizeof version);
  return seal(bytes.data(), version,
              std::string_view(bytes).substr(kHeaderBytes, bytes.size() - kHeaderBytes - kIdentityBytes));
}

TEST(Codec, DecodeIsTheInverseOfEncode) {
  const Executable executable = makeExecutable();
  ASSERT_EQ(verify(executable), std::vector<std::string>{});
  EXPECT_EQ(decode(encode(executable)), executable);
  EXPECT_EQ(encode(decode(encode(executable))), encode(executable));
  EXPECT_EQ(print(decode(encode(executable))), print(executable));
  EXPECT_TRUE(parse(print(executable)) == executable) << print(executable);
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

// Other contents are another program, whatever the header says.
TEST(Codec, RefusesEveryDamagedByteWhoseChecksumIsRepaired) {
  const std::string bytes = encode(makeExecutable());
  for (size_t i = kHeaderBytes; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_TRUE(isRefused(withChecksum(damaged))) << i;
  }
}

// Damage that nothing sees: decode must refuse it or return something that a runtime can trust.
TEST(Codec, SurvivesForgedContents) {
  const std::string bytes = encode(makeExecutable());
  std::mt19937_64 random(7);
  int refused = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::string forged = bytes;
    for (uint64_t i = 0, n = 1 + random() % 4; i < n; ++i) {
      const size_t at = kHeaderBytes + random() % (forged.size() - kHeaderBytes - kIdentityBytes);
      forged[at] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    refused += isRefused(sealedAgain(forged));
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
  executable.workers[1].actions[1].waits[0].segment = 9;
  executable.input_slots[0] = 2;
  EXPECT_EQ(verify(executable),
            (std::vector<std::string>{"slot 0: ends after its group of 256 bytes", "worker 1: waits for segment 9",
                                      "input slot 2 is in a group of another kind"}));
}

// Each line: what a file may say, and what a runtime would do with it if nobody looked.
TEST(VerifyExecutable, RefusesWhatCannotRun) {
  struct Case {
    const char* finding;
    std::function<void(Executable&)> change;
  };
  const Case cases[] = {
      {"frames", [](Executable& e) { e.groups[1].frames = 1 << 30; }},
      {"frames", [](Executable& e) { e.groups[0].frames = 2; }},
      {"bytes", [](Executable& e) { e.groups[0].frame_bytes = int64_t{1} << 50; }},
      {"impossible type", [](Executable& e) { e.slots[0].type = {DType::kFloat32, {1 << 30, 1 << 30}, {0, 0}}; }},
      {"offset 2", [](Executable& e) { e.slots[0].offset_bytes = 2; }},  // not a multiple of its 4 bytes
      {"a type with gaps", [](Executable& e) { e.slots[1].type.strides = {int64_t{1} << 40}; }},
      {"replicas", [](Executable& e) { e.replicas = 1 << 20; }},
      {"random draws", [](Executable& e) { e.random_draws = int64_t{1} << 60; }},
      {"random draws", [](Executable& e) { e.segments[0].instructions[0].random_offset = int64_t{1} << 40; }},
      {"normal numbers", [](Executable& e) { e.normals.count = int64_t{1} << 60; }},
      {"normal numbers", [](Executable& e) { e.normals.spare = 5; }},
      {"normal numbers after", [](Executable& e) { e.segments[0].instructions[0].normals.before = -1; }},
      {"a spare", [](Executable& e) { e.segments[0].instructions[0].normals.spare = 1; }},
      {"a spare", [](Executable& e) { e.segments[0].instructions[0].normals = {.count = 1, .spare = -5}; }},
      {"has no place in their stream",
       [](Executable& e) {
         e.segments[0].instructions[0].normals = {};
         e.segments[0].instructions[0].random_draws = -1;
       }},
      {"writes the input", [](Executable& e) { e.segments[0].instructions[0].results[0][0] = 1; }},
      {"uses the result", [](Executable& e) { e.segments[0].instructions[0].args[0].i = 2; }},
      {"uses the result", [](Executable& e) { e.segments[0].instructions[1].args[1].i = 2; }},
      {"writes slot", [](Executable& e) { e.segments[0].instructions[0].writes[0] = 3; }},
      {"a number without a kind",
       [](Executable& e) { e.segments[0].instructions[0].args[3].number_kind = Arg::Kind::kString; }},
      {"no such operator", [](Executable& e) { e.segments[0].instructions[0].op = "abele::emitt"; }},
      {"abele::emit: argument 1", [](Executable& e) { e.slots[3].type = contiguousType(DType::kBFloat16, {3}); }},
      {"abele::copy: argument 0 (dst)",
       [](Executable& e) {
         e.segments[1].instructions = {{.op = "abele::copy", .args = {Arg::id(1), Arg::id(1)}, .writes = {}}};
       }},
      // w is f32[2,3], which is as the sum of [2,n] and [n,3] would be.
      {"abele::accumulate_product: argument 1 (left)", [](Executable& e) { addSum(e, 1, 0); }},
      {"abele::accumulate_product: not a product", [](Executable& e) { addSum(e, 0, 0); }},
      {"abele::accumulate_product: not a product",
       [](Executable& e) {
         e.slots[1].type = contiguousType(DType::kFloat32, {2, 2});
         e.slots[3].type = contiguousType(DType::kFloat64, {2, 3});
         addSum(e, 1, 3);
       }},
      {"abele::accumulate_product: argument 0 (accumulator)",
       [](Executable& e) {
         e.slots[1].type = contiguousType(DType::kFloat32, {2, 2});
         e.slots[3].type = contiguousType(DType::kFloat32, {2, 3});
         addSum(e, 1, 3).writes.clear();
       }},
      {"abele::accumulate_product: results",
       [](Executable& e) {
         e.slots[1].type = contiguousType(DType::kFloat32, {2, 2});
         e.slots[3].type = contiguousType(DType::kFloat32, {2, 3});
         addSum(e, 1, 3).results = {{0}};
       }},
      {"abele::accumulate_rows: 3 arguments", [](Executable& e) { addSum(e, 3, 1).op = "abele::accumulate_rows"; }},
      {"abele::accumulate_rows: argument 3 (padding)", [](Executable& e) { addRows(e).args[3] = Arg::real(1); }},
      {"abele::accumulate_rows: not rows", [](Executable& e) { addRows(e), e.slots[1].type.dtype = DType::kInt16; }},
      {"abele::accumulate_rows: not rows", [](Executable& e) { addRows(e), e.slots[1].type.sizes = {3}; }},
      {"abele::accumulate_rows: not rows", [](Executable& e) { addRows(e), e.slots[3].type.strides = {1, 4}; }},
      {"abele::emit: 1 argument, expected 2", [](Executable& e) { e.segments[0].instructions[1].args.pop_back(); }},
      {"for several processes",
       [](Executable& e) {
         e.segments[1].instructions = {{.op = "abele::share_sum", .args = {Arg::idList({0})}, .writes = {0}}};
         e.processes = 1;
       }},
      {"abele::sgd_: argument 3",
       [](Executable& e) {
         e.segments[1].instructions = {{.op = "abele::sgd_",
                                        .args = {Arg::id(0), Arg::id(0), Arg::none(), Arg::integer(int64_t{1} << 40)},
                                        .writes = {0}}};
       }},
      {"computes on a link",
       [](Executable& e) {
         e.segments[1].instructions = {{.op = "abele::zero", .args = {Arg::id(0)}, .writes = {0}}};
       }},
      {"of space 1, from 1", [](Executable& e) { e.workers[1].from = 1; }},
      {"of space 1, from 0 to 0", [](Executable& e) { e.workers[1].to = 0; }},
      {"worker 1: process 1", [](Executable& e) { e.workers[1].process = 1; }},
      {"0 processes for the stages of a replica", [](Executable& e) { e.stage_processes = 0; }},
      {"in a program for one",
       [](Executable& e) {
         e.segments[1].instructions = {
             {.op = "abele::send", .args = {Arg::idList({0}), Arg::integer(0), Arg::integer(0)}}};
       }},
      {"a copy with 3 slots for 2 replicas", [](Executable& e) { e.externals[0].copies = {{.slots = {0, 0, 0}}}; }},
      {"is not persistent", [](Executable& e) { e.externals[0].copies = {{.slots = {0, 3}}}; }},
      {"has another type", [](Executable& e) { e.externals[0].copies[0].begin = 2; }},
      {"has another type", [](Executable& e) { e.externals[0].copies[0].dim = 0; }},
      {"share memory", [](Executable& e) { e.slots[4].offset_bytes = 64; }},
      {"is not persistent", [](Executable& e) { e.externals[0].slot = 3; }},
      {"owner", [](Executable& e) { e.externals[0].owner = 1; }},
      {"share memory", [](Executable& e) { e.externals[1] = {"v", ExternalKind::kBuffer, 0}; }},
      {"belongs to no argument", [](Executable& e) { e.input_slots = {-1, -1, -1, -1}; }},
      {"belongs to no result", [](Executable& e) { e.output_slots = {-1, -1}; }},
      {"runs 5 times instead of 6", [](Executable& e) { e.workers[0].actions.pop_back(); }},
      {"runs twice", [](Executable& e) { e.workers[0].actions[1].micro_batch = 0; }},
      {"fwd/0 runs for micro-batch 0 after micro-batch 1",
       [](Executable& e) { std::swap(e.workers[0].actions[0].micro_batch, e.workers[0].actions[1].micro_batch); }},
      {"in the middle of a group", [](Executable& e) { e.workers[1].actions[0].micro_batch = 1; }},
      {"waits forever", [](Executable& e) { e.workers[1].actions[0].waits[0].completions = 7; }},
      {"waits forever", [](Executable& e) { e.workers[0].actions[2].waits = {{1, 1}}; }},
      {"transient memory",
       [](Executable& e) {
         e.groups[3] = {GroupKind::kTransient, 1, 1, 128, "transient/worker1"};
         for (Action& a : e.workers[0].actions) a.fetches = a.releases = {};
       }},
  };
  for (const Case& each : cases) {
    Executable executable = makeExecutable();
    each.change(executable);
    std::string all;
    for (const std::string& finding : verify(executable)) all += finding + "\n";
    EXPECT_NE(all.find(each.finding), std::string::npos) << each.finding << " is not among:\n" << all;
  }
}

// Two processes: the first sends what the second one computes with.
Executable makeTwoProcesses() {
  return parse(R"(
executable inference device_iterations=1 accumulation=1 micro_batches=1 random_draws=0 stage_processes=2
  group 0 stash/stage0 stash worker=0 frames=1 bytes=64
  group 1 receive/fwd/1 stash worker=1 frames=1 bytes=64
  $0 %1 f32[4] group=0 at=0
  $1 %2 f32[4] group=1 at=0
  inputs [] outputs []
  segment 0 fwd/0
    $0 = aten::a()
  segment 1 fwd/1
    none = aten::b($1)
  segment 2 in/fwd/1/space0 stage=1 forward
    abele::receive([$1], 0, 0) writes($1)
  segment 3 out/fwd/1/space0 stage=1 forward
    abele::send([$0], 1, 0)
  worker 0 device=0
    fwd/0 micro_batch=0
  worker 1 device=1 space=1 process=1
    fwd/1 micro_batch=0 wait(in/fwd/1/space0>=1)
  worker 2 device=1 space=1 from=0 process=1
    in/fwd/1/space0 micro_batch=0 wait(out/fwd/1/space0>=1)
  worker 3 device=0 to=1
    out/fwd/1/space0 micro_batch=0 wait(fwd/0>=1)
)");
}

TEST(VerifyExecutable, OnlyMessagesComeFromOtherProcesses) {
  const Executable good = makeTwoProcesses();
  EXPECT_EQ(parse(print(good)), good);
  EXPECT_EQ(decode(encode(good)), good);
  Executable executable = good;
  executable.workers[1].actions[0].waits = {{0, 1}};
  EXPECT_EQ(verify(executable), (std::vector<std::string>{"fwd/1 waits for fwd/0 of another process"}));
  executable = good;
  executable.workers[1].actions[0].segment = 0;
  EXPECT_EQ(verify(executable).front(), "fwd/0 is run by workers 0 and 1");
  executable = good;
  executable.segments[3].instructions[0].args[1].i = 2;
  EXPECT_EQ(verify(executable),
            (std::vector<std::string>{"out/fwd/1/space0 abele::send: no values, or no such process"}));
}

// Otherwise the receiver would take for its values what is none, or wait for what nobody sends.
TEST(VerifyExecutable, BothEndsOfALinkExpectTheSameMessages) {
  const Executable good = makeTwoProcesses();
  const auto findings = [&](auto&& change) {
    Executable executable = good;
    change(executable);
    return verify(executable);
  };
  const std::vector<std::string> differ = {"link 0: message 0 is not sent as it is received"};
  EXPECT_EQ(findings([](Executable& e) { e.slots[1].type.sizes = {2}; }), differ);
  EXPECT_EQ(findings([](Executable& e) { e.slots[1].type.dtype = DType::kInt32; }), differ);
  EXPECT_EQ(findings([](Executable& e) { e.segments[3].instructions[0].args[0].ints = {0, 0}; }), differ);
  EXPECT_EQ(findings([](Executable& e) { e.segments[2].instructions[0].args[1].i = 1; }), differ);
  EXPECT_EQ(
      findings([](Executable& e) { e.segments[3].instructions[0].args[2].i = 1; }),
      (std::vector<std::string>{"link 0: 0 messages are sent, 1 received", "link 1: 1 messages are sent, 0 received"}));
}

}  // namespace
}  // namespace abele::exe
