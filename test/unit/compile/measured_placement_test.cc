#include "compile/measured_placement.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "base/error.h"

namespace abele::compile {
namespace {

namespace fs = std::filesystem;

using Numbers = std::vector<int>;

Numbers pipelines(int cores, int64_t micro_batches) {
  Numbers devices;
  for (const PlacementCandidate& candidate : placementCandidates(cores, micro_batches, /*may_take_turns=*/false))
    devices.push_back(candidate.devices);
  return devices;
}

TEST(MeasuredPlacement, CandidatesAreDivisorsOfTheCores) {
  EXPECT_EQ(pipelines(12, 100), (Numbers{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(pipelines(12, 3), (Numbers{1, 2, 3}));
  EXPECT_EQ(pipelines(7, 8), (Numbers{1, 7}));
  EXPECT_EQ(pipelines(1, 8), (Numbers{1}));
  EXPECT_EQ(pipelines(4, 0), (Numbers{1}));
}

TEST(MeasuredPlacement, SeveralDevicesAreTriedInTurnAndAsAPipeline) {
  const std::vector<PlacementCandidate> expected = {{1}, {2, true}, {2}, {4, true}, {4}};
  EXPECT_EQ(placementCandidates(4, 8, /*may_take_turns=*/true), expected);
}

// Trials on a machine of 8 cores where a call takes these times.
std::vector<PlacementTrial> tried(const std::map<int, int64_t>& ns, Numbers* asked = nullptr) {
  return tryCandidates(placementCandidates(8, 8, false), [&](const PlacementCandidate& candidate, bool) {
    const int devices = candidate.devices;
    if (asked) asked->push_back(devices);
    if (!ns.contains(devices)) throwUser(ErrorCode::E0406, {.what = "too few pieces"});
    return PlacementTrial{.candidate = candidate, .threads = 8 / devices, .step_ns = ns.at(devices)};
  });
}

TEST(MeasuredPlacement, TakesTheShortestAndOfEqualsTheFewest) {
  EXPECT_EQ((MeasuredPlacement{"", tried({{1, 9}, {2, 7}, {4, 8}, {8, 7}})}).best().candidate.devices, 2);
  EXPECT_EQ((MeasuredPlacement{"", tried({{1, 9}, {2, 9}, {4, 9}, {8, 5}})}).best().candidate.devices, 8);
  EXPECT_EQ((MeasuredPlacement{"", tried({{1, 5}, {2, 5}, {4, 5}, {8, 5}})}).best().candidate.devices, 1);
}

TEST(MeasuredPlacement, EndsWhereTwoInARowAreSlower) {
  Numbers asked;
  EXPECT_EQ(tried({{1, 5}, {2, 7}, {4, 8}, {8, 1}}, &asked).size(), 3U);
  EXPECT_EQ(asked, (Numbers{1, 2, 4}));
}

// Trials on a machine of 16 cores. A call takes `in_turn` and `pipeline` by number of devices.
std::vector<PlacementCandidate> askedBothWays(const std::map<int, int64_t>& in_turn,
                                              const std::map<int, int64_t>& pipeline) {
  std::vector<PlacementCandidate> asked;
  tryCandidates(placementCandidates(16, 16, true), [&](const PlacementCandidate& candidate, bool) {
    asked.push_back(candidate);
    return PlacementTrial{.candidate = candidate,
                          .step_ns = (candidate.in_turn ? in_turn : pipeline).at(candidate.devices)};
  });
  return asked;
}

TEST(MeasuredPlacement, BothWaysAreTriedWhicheverIsFaster) {
  const std::vector<PlacementCandidate> all = {{1}, {2, true}, {2}, {4, true}, {4}, {8, true}, {8}, {16, true}, {16}};
  EXPECT_EQ(askedBothWays({{2, 8}, {4, 6}, {8, 9}, {16, 4}}, {{1, 9}, {2, 7}, {4, 9}, {8, 9}, {16, 9}}), all);
}

TEST(MeasuredPlacement, EndsWhereBothWaysOfTwoNumbersAreSlower) {
  EXPECT_EQ(askedBothWays({{2, 7}, {4, 7}}, {{1, 5}, {2, 7}, {4, 7}}),
            (std::vector<PlacementCandidate>{{1}, {2, true}, {2}, {4, true}, {4}}));
  // The slower way of the best number does not count.
  EXPECT_EQ(askedBothWays({{2, 4}, {4, 6}, {8, 6}}, {{1, 5}, {2, 6}, {4, 6}, {8, 6}}),
            (std::vector<PlacementCandidate>{{1}, {2, true}, {2}, {4, true}, {4}, {8, true}, {8}}));
}

// Trials whose times are those of a list, by number of devices and in order of the trials.
std::vector<PlacementTrial> triedWithNoise(std::map<int, Numbers> ns, Numbers* asked) {
  return tryCandidates(placementCandidates(4, 8, false), [&](const PlacementCandidate& candidate, bool again) {
    EXPECT_EQ(again, std::ranges::count(*asked, candidate.devices) > 0);
    asked->push_back(candidate.devices);
    Numbers& times = ns.at(candidate.devices);
    const int first = times.front();
    times.erase(times.begin());
    return PlacementTrial{.candidate = candidate, .step_ns = first};
  });
}

TEST(MeasuredPlacement, CloseOnesAreTriedAgainInTheOppositeOrder) {
  Numbers asked;
  const auto trials = triedWithNoise({{1, {1000, 990}}, {2, {1190, 900}}, {4, {1201}}}, &asked);
  EXPECT_EQ(asked, (Numbers{1, 2, 4, 2, 1}));
  EXPECT_EQ((MeasuredPlacement{"", trials}).best().candidate.devices, 2);
  EXPECT_EQ(trials[0].step_ns, 990);
  EXPECT_EQ(trials[1].step_ns, 900);

  asked.clear();
  const auto slower = triedWithNoise({{1, {1000, 1200}}, {2, {1050, 1100}}, {4, {2000}}}, &asked);
  EXPECT_EQ((MeasuredPlacement{"", slower}).best().candidate.devices, 1);  // noise makes no time shorter
  EXPECT_EQ(slower[1].step_ns, 1050);

  asked.clear();
  triedWithNoise({{1, {1000}}, {2, {1201}}, {4, {1300}}}, &asked);
  EXPECT_EQ(asked, (Numbers{1, 2, 4}));  // one that is alone needs no second time
}

TEST(MeasuredPlacement, ALongCallIsTriedWithSomeOfItsMicroBatches) {
  ProgramOptions options;
  options.training = true;
  options.gradient_accumulation = 64;
  options.device_iterations = 3;
  for (const auto& [devices, expected] : std::map<int, int>{{1, 1}, {2, 2}, {8, 8}}) {
    const ProgramOptions brief = shortCall(options, devices);
    EXPECT_EQ(brief.gradient_accumulation, expected) << devices;
    EXPECT_EQ(brief.device_iterations, 1);
  }
  options.gradient_accumulation = 2;
  EXPECT_EQ(shortCall(options, 4).gradient_accumulation, 2);
  options.training = false;
  options.gradient_accumulation = 1;
  options.device_iterations = 50;
  EXPECT_EQ(shortCall(options, 2).device_iterations, 2);
  EXPECT_EQ(shortCall(options, 2).gradient_accumulation, 1);
}

TEST(MeasuredPlacement, AWholeCallTakesMoreMicroBatchesAndUpdatesThanAShortOne) {
  const TimedCall call{.call_ns = 1000, .micro_batch_ns = 100};
  ProgramOptions options;
  options.training = true;
  options.gradient_accumulation = 10;
  options.device_iterations = 2;
  EXPECT_EQ(wholeCallNs(options, shortCall(options, 4), call), 2 * (1000 + 6 * 100));
  EXPECT_EQ(wholeCallNs(options, options, call), 1000);
  options.training = false;
  options.gradient_accumulation = 1;
  options.device_iterations = 50;
  EXPECT_EQ(wholeCallNs(options, shortCall(options, 4), call), 1000 + 46 * 100);
}

TEST(MeasuredPlacement, WhatIsRefusedIsNotTaken) {
  const MeasuredPlacement placement{"here", tried({{1, 5'000'000}, {8, 4'000'000}})};
  EXPECT_EQ(placement.best().candidate.devices, 8);
  EXPECT_EQ(placement.text(),
            "devices measured on here:\n"
            "  1 device of 8 threads: 5.000 ms a call, +25.0 %\n"
            "  2 devices: refused, too few pieces\n"
            "  4 devices: refused, too few pieces\n"
            "  8 devices of 1 thread: 4.000 ms a call, taken\n");
  EXPECT_THROW(tried({}), UserError);
}

TEST(MeasuredPlacement, TextNamesDevicesThatTakeTurns) {
  EXPECT_EQ(
      (MeasuredPlacement{"here", {{{2, true}, 4, 4'000'000, ""}, {{8, true}, 1, 0, "too few micro-batches"}}}).text(),
      "devices measured on here:\n"
      "  2 devices of 4 threads that take micro-batches in turn: 4.000 ms a call, taken\n"
      "  8 devices that take micro-batches in turn: refused, too few micro-batches\n");
}

const MeasuredPlacement& example() {
  static const MeasuredPlacement placement{"a processor, 8 cores, 8 threads, torch 2",
                                           {{{1}, 8, 5000, ""},
                                            {{2}, 4, 0, "does not fit"},
                                            {{4, true}, 2, 4000, ""},
                                            {{8, true}, 1, 0, "nor does this"},
                                            {{8}, 1, 4100, ""}}};
  return placement;
}

TEST(MeasuredPlacement, TextIsReadAsItWasWritten) {
  const auto again = readPlacement(writePlacement(example()));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->machine, example().machine);
  EXPECT_EQ(again->trials, example().trials);
}

TEST(MeasuredPlacement, NoDamagedTextIsRead) {
  const std::string text = writePlacement(example());
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(readPlacement(text.substr(0, i))) << i;
    for (const char other : {'0', '7', ' ', '\n', 'x', '\0'}) {
      std::string changed = text;
      if (changed[i] == other) continue;
      changed[i] = other;
      EXPECT_FALSE(readPlacement(changed)) << i << " " << other;
    }
  }
  EXPECT_FALSE(readPlacement(text + "devices 1 threads 8 step_ns 1\n"));
}

class Store : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  PlacementStore store(const std::string& machine = example().machine) const {
    return {folder_.string(), "program", machine};
  }
  fs::path onlyFile() const { return fs::directory_iterator(folder_)->path(); }

  fs::path folder_ = fs::path(testing::TempDir()) / "abele_placements";
};

TEST_F(Store, KeepsAFileForAProgramAndAMachine) {
  EXPECT_FALSE(store().find());
  store().keep(example());
  ASSERT_TRUE(store().find());
  EXPECT_EQ(store().find()->trials, example().trials);
  EXPECT_FALSE(store("another one").find());
  EXPECT_FALSE((PlacementStore(folder_.string(), "another", example().machine).find()));
}

TEST_F(Store, ADamagedFileIsAsNone) {
  store().keep(example());
  std::ofstream(onlyFile(), std::ios::app) << "x";
  testing::internal::CaptureStderr();
  EXPECT_FALSE(store().find());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("devices are measured again: the file is damaged"),
            std::string::npos);
  std::ofstream(onlyFile(), std::ios::trunc) << "";
  EXPECT_FALSE(store().find());
  store().keep(example());
  EXPECT_TRUE(store().find());
}

TEST_F(Store, AFileOfAnotherMachineIsAsNone) {
  store().keep(example());
  MeasuredPlacement other = example();
  other.machine = "another one";
  std::ofstream(onlyFile(), std::ios::trunc) << writePlacement(other);
  EXPECT_FALSE(store().find());
}

TEST_F(Store, WithoutAFolderTheProcessKeepsIt) {
  const PlacementStore here("", "program of this test", "machine");
  EXPECT_FALSE(here.find());
  here.keep(example());
  ASSERT_TRUE(here.find());
  EXPECT_EQ(here.find()->trials, example().trials);
}

}  // namespace
}  // namespace abele::compile
