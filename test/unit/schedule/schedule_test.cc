#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/cat.h"
#include "schedule/schedule.h"

namespace abele::schedule {
namespace {

using ir::Direction;
using Findings = std::vector<std::string>;

std::vector<int> ownWorkers(int num_stages) {
  std::vector<int> workers;
  for (int s = 0; s < num_stages; ++s) workers.push_back(s);
  return workers;
}

TEST(Schedule1F1B, WarmsUpAlternatesAndDrains) {
  EXPECT_EQ(printSchedule(schedule1F1B({.worker_of = ownWorkers(3), .accumulation = 4})),
            "worker 0: F0 F1 F2 . . B0 F3 B1 . B2 . B3 U3\n"
            "worker 1: . F0 F1 . B0 F2 B1 F3 B2 . B3 . U3\n"
            "worker 2: . . F0 B0 F1 B1 F2 B2 F3 B3 . . U3\n");
}

TEST(Schedule1F1B, RunsFewerMicroBatchesThanStages) {
  EXPECT_EQ(printSchedule(schedule1F1B({.worker_of = ownWorkers(3)})),
            "worker 0: F0 . . . . B0 U0\n"
            "worker 1: . F0 . . B0 . U0\n"
            "worker 2: . . F0 B0 . . U0\n");
}

TEST(Schedule1F1B, StagesOfOneWorkerTakeTheBackwardFirst) {
  EXPECT_EQ(printSchedule(schedule1F1B({.worker_of = {0, 0}, .accumulation = 2})),
            "worker 0: F0.0 F1.0 B1.0 F0.1 B0.0 F1.1 B1.1 B0.1 U1.1 U0.1\n");
}

TEST(Schedule1F1B, UpdatesSeparateTheGroups) {
  EXPECT_EQ(printSchedule(schedule1F1B({.worker_of = {0}, .device_iterations = 2, .accumulation = 2})),
            "worker 0: F0 B0 F1 B1 U1 F2 B2 F3 B3 U3\n");
}

TEST(ScheduleSharded, KeepsOneMicroBatchInWork) {
  EXPECT_EQ(printSchedule(scheduleSharded({.worker_of = {0, 1}, .accumulation = 2})),
            "worker 0: F0 . . B0 F1 . . B1 U1\n"
            "worker 1: . F0 B0 . . F1 B1 . U1\n");
}

TEST(ScheduleForward, KeepsEveryStageBusy) {
  EXPECT_EQ(printSchedule(scheduleForward({.worker_of = {0, 1}, .device_iterations = 3, .training = false})),
            "worker 0: F0 F1 F2\nworker 1: . F0 F1 F2\n");
}

// Counts every action; verifySchedule has looked for the rest.
void expectComplete(const Schedule& schedule, int num_stages, int64_t accumulation, bool training) {
  ASSERT_EQ(verifySchedule(schedule, num_stages, accumulation, training), Findings{}) << printSchedule(schedule);
  size_t count = 0;
  for (const auto& actions : schedule.workers) count += actions.size();
  const size_t m = static_cast<size_t>(schedule.micro_batches), p = static_cast<size_t>(num_stages);
  EXPECT_EQ(count, training ? 2 * m * p + p * m / static_cast<size_t>(accumulation) : m * p);
}

TEST(Schedules, EveryRowIsFoundByNameAndMakesSchedulesThatVerify) {
  for (const ScheduleRow& row : allSchedules()) {
    SCOPED_TRACE(row.name);
    ScheduleKind kind{};
    ASSERT_TRUE(parseSchedule(row.name, kind));
    EXPECT_EQ(kind, row.kind);
    for (const bool training : {false, true}) {
      if (!hasTrait(row.kind, training ? kTrains : kInfers)) continue;
      const int64_t accumulation = training ? 5 : 1;
      const Schedule schedule = row.make(
          {.worker_of = ownWorkers(3), .device_iterations = 2, .accumulation = accumulation, .training = training});
      EXPECT_EQ(verifySchedule(schedule, 3, accumulation, training), Findings{});
    }
    EXPECT_TRUE(!row.is_choice || hasTrait(row.kind, kTrains)) << "users choose schedules for training";
  }
}

// The keys of cached executables hold the numbers: a new schedule stands behind the others.
TEST(Schedules, KeepTheirNumbers) {
  EXPECT_EQ(static_cast<int>(ScheduleKind::kSharded), 0);
  EXPECT_EQ(static_cast<int>(ScheduleKind::k1F1B), 1);
  EXPECT_EQ(static_cast<int>(ScheduleKind::kForward), 2);
  EXPECT_EQ(static_cast<int>(ScheduleKind::kGPipe), 3);
  EXPECT_EQ(static_cast<int>(ScheduleKind::kInterleaved), 4);
  EXPECT_EQ(static_cast<int>(ScheduleKind::kZeroBubble), 5);
  EXPECT_EQ(static_cast<int>(ScheduleKind::kZeroBubble2), 6);
}

TEST(Schedules, KnowsTheWordsOfUsers) {
  ScheduleKind kind = ScheduleKind::kGPipe;
  EXPECT_FALSE(parseSchedule("fast", kind));
  EXPECT_EQ(kind, ScheduleKind::kGPipe);
}

TEST(ScheduleProperty, AllKindsVerifyForAnyWorkers) {
  std::mt19937 random(1);
  for (int p = 1; p <= 5; ++p)
    for (int64_t a = 1; a <= 9; ++a)
      for (int64_t d = 1; d <= 3; ++d)
        for (int trial = 0; trial < 4; ++trial) {
          std::vector<int> workers = ownWorkers(p);
          if (trial > 0)
            for (int& w : workers) w = static_cast<int>(random() % static_cast<unsigned>(p));
          SCOPED_TRACE(cat("stages ", p, " accumulation ", a, " iterations ", d, " trial ", trial));
          expectComplete(schedule1F1B({.worker_of = workers, .device_iterations = d, .accumulation = a}), p, a, true);
          expectComplete(scheduleSharded({.worker_of = workers, .device_iterations = d, .accumulation = a}), p, a,
                         true);
          expectComplete(scheduleSharded({.worker_of = workers, .device_iterations = d, .training = false}), p, 1,
                         false);
          expectComplete(scheduleForward({.worker_of = workers, .device_iterations = d * a, .training = false}), p, 1,
                         false);
        }
}

TEST(ScheduleProperty, NeverKeepsMoreMicroBatchesThanStagesBehind) {
  for (int p = 1; p <= 5; ++p) {
    const Schedule schedule = schedule1F1B({.worker_of = ownWorkers(p), .device_iterations = 2, .accumulation = 9});
    for (int s = 0; s < p; ++s) {
      int alive = 0, most = 0;
      for (const Action& action : schedule.workers[s]) {
        if (action.direction == Direction::kForward) most = std::max(most, ++alive);
        if (action.direction == Direction::kBackward) --alive;
      }
      EXPECT_EQ(most, p - s);
    }
  }
}

TEST(VerifySchedule, NamesEveryFault) {
  Schedule schedule = schedule1F1B({.worker_of = {0, 1}, .accumulation = 2});
  auto& first = schedule.workers[0];
  first.push_back(first[0]);                                  // twice
  std::swap(schedule.workers[1][0], schedule.workers[1][1]);  // backward first
  schedule.workers[1].pop_back();                             // the only update of stage 1: allowed
  EXPECT_EQ(verifySchedule(schedule, 2, 2, true),
            (Findings{"worker 0: F0.0 runs twice", "worker 0: B0.0 before F0.0", "worker 0: F0.1 before F0.0",
                      "worker 1: B1.0 before F1.0"}));
}

TEST(VerifySchedule, FindsMissingAndForeignActions) {
  Schedule schedule;
  schedule.micro_batches = 1;
  schedule.workers = {{{0, Direction::kForward, 0}, {1, Direction::kForward, 0}, {0, Direction::kBackward, 3}},
                      {{1, Direction::kBackward, 0}}};
  EXPECT_EQ(verifySchedule(schedule, 2, 1, true),
            (Findings{"worker 0: B0.3 is outside the schedule", "stage 1 runs on workers 0 and 1", "B0.0 is missing"}));
  EXPECT_EQ(verifySchedule(schedule, 2, 2, true), Findings{"1 micro-batches do not divide into groups of 2"});
}

TEST(VerifySchedule, KeepsUpdatesBehindTheGradientsThatTheyRead) {
  const Action f{0, Direction::kForward, 0}, b{0, Direction::kBackward, 0}, w{0, Direction::kWeightGrad, 0},
      u{0, Direction::kUpdate, 0};
  Schedule schedule;
  schedule.micro_batches = 1;
  schedule.workers = {{f, b, w, u}};
  EXPECT_EQ(verifySchedule(schedule, 1, 1, true), Findings{});
  schedule.workers = {{f, b, u, w}};
  EXPECT_EQ(verifySchedule(schedule, 1, 1, true), Findings{"worker 0: U0.0 before W0.0"});
  schedule.workers = {{f, u, b}};
  EXPECT_EQ(verifySchedule(schedule, 1, 1, true), Findings{"worker 0: U0.0 before B0.0"});
}

TEST(VerifySchedule, FindsDeadlocks) {
  Schedule schedule;
  schedule.micro_batches = 2;
  schedule.workers = {{{0, Direction::kForward, 0}, {0, Direction::kForward, 1}},
                      {{1, Direction::kForward, 1}, {1, Direction::kForward, 0}}};
  EXPECT_EQ(verifySchedule(schedule, 2, 1, false), Findings{"worker 1: F1.1 before F1.0"});  // sums would differ
  schedule.workers = {{{1, Direction::kForward, 0},
                       {0, Direction::kForward, 0},
                       {0, Direction::kForward, 1},
                       {1, Direction::kForward, 1}}};
  EXPECT_EQ(verifySchedule(schedule, 2, 1, false), Findings{"deadlock: some actions never become ready"});
}

}  // namespace
}  // namespace abele::schedule
