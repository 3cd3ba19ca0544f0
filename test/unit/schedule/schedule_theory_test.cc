// The papers' promises for each schedule, and that every schedule runs for any shape.
#include <gtest/gtest.h>

#include <random>

#include "base/cat.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace abele::schedule {
namespace {

std::vector<int> dealtRound(int num_stages, int num_workers) {
  std::vector<int> workers;
  for (int s = 0; s < num_stages; ++s) workers.push_back(s % num_workers);
  return workers;
}

std::vector<StageCost> equalCosts(int num_stages, const StageCost& cost) {
  return std::vector<StageCost>(static_cast<size_t>(num_stages), cost);
}

// The longest wait of a worker between its first and last action, in a run of one group.
int64_t idle(const Simulation& run) {
  int64_t longest = 0;
  for (const WorkerTimes& w : run.workers) longest = std::max(longest, w.idle_ns);
  return longest;
}

Simulation timed(const Schedule& schedule, int num_stages, int64_t accumulation, const std::vector<StageCost>& costs,
                 bool training = true) {
  EXPECT_EQ(verifySchedule(schedule, num_stages, accumulation, training), std::vector<std::string>{})
      << printSchedule(schedule);
  Simulation run = simulate(schedule, num_stages, accumulation, {.stages = costs});
  EXPECT_TRUE(run.complete) << printSchedule(schedule);
  return run;
}

// Whole backwards of 2 to 3 times a forward, and less: the weight gradient is part of them.
const StageCost kWhole[] = {{1, 2, 0, 0}, {2, 4, 0, 0}, {3, 4, 0, 0}, {2, 2, 0, 0}, {4, 9, 0, 0}};

TEST(ScheduleTheory, GPipeAnd1F1BWaitOnceThroughThePipeline) {
  for (const StageCost& cost : kWhole)
    for (int p = 1; p <= 4; ++p)
      for (int64_t m = 1; m <= 8; ++m) {
        SCOPED_TRACE(cat("stages ", p, " micro-batches ", m, " F ", cost.forward_ns, " B ", cost.backward_ns));
        const std::vector<StageCost> costs = equalCosts(p, cost);
        const int64_t theory = (p - 1) * (cost.forward_ns + cost.backward_ns);
        const Simulation gpipe = timed(scheduleGPipe({.worker_of = dealtRound(p, p), .accumulation = m}), p, m, costs);
        const Simulation one = timed(schedule1F1B({.worker_of = dealtRound(p, p), .accumulation = m}), p, m, costs);
        EXPECT_EQ(idle(gpipe), theory);
        EXPECT_EQ(idle(one), theory);
        EXPECT_EQ(one.step_ns, theory + m * (cost.forward_ns + cost.backward_ns));
        for (int s = 0; s < p; ++s) {
          EXPECT_EQ(gpipe.held[static_cast<size_t>(s)], m);
          EXPECT_EQ(one.held[static_cast<size_t>(s)], std::min<int64_t>(m, p - s));
        }
      }
}

TEST(ScheduleTheory, InterleavingDividesTheBubbleByTheChunks) {
  for (const StageCost& cost : kWhole)
    for (int v = 1; v <= 3; ++v)
      for (int p = 1; p <= 4; ++p)
        for (int64_t m = 1; m <= 8; ++m) {
          SCOPED_TRACE(cat("workers ", p, " chunks ", v, " micro-batches ", m, " F ", cost.forward_ns));
          // A stage is one v-th of what a worker does for a micro-batch.
          const int stages = p * v;
          const Simulation run = timed(scheduleInterleaved({.worker_of = dealtRound(stages, p), .accumulation = m}),
                                       stages, m, equalCosts(stages, cost));
          const int64_t theory = (p - 1) * (cost.forward_ns + cost.backward_ns);
          if (m >= p || v == 1)
            EXPECT_EQ(idle(run), theory);
          else
            EXPECT_GE(idle(run), theory);
          // Never slower than 1F1B of the same workers with all their chunks in one stage.
          const StageCost whole{v * cost.forward_ns, v * cost.backward_ns, 0, 0};
          EXPECT_LE(run.step_ns,
                    timed(schedule1F1B({.worker_of = dealtRound(p, p), .accumulation = m}), p, m, equalCosts(p, whole))
                        .step_ns);
        }
}

TEST(ScheduleTheory, ZeroBubbleFillsTheBubbleWithWeightGradients) {
  // F, the input gradient's part of B, W.
  for (const StageCost& cost : {StageCost{1, 1, 1, 0}, StageCost{2, 2, 1, 0}, StageCost{3, 3, 2, 0},
                                StageCost{2, 3, 2, 0}, StageCost{3, 2, 2, 0}})
    for (int p = 1; p <= 4; ++p)
      for (int64_t m = 1; m <= 8; ++m) {
        SCOPED_TRACE(cat("stages ", p, " micro-batches ", m, " F ", cost.forward_ns, " B ", cost.backward_ns, " W ",
                         cost.weight_grad_ns));
        const std::vector<StageCost> costs = equalCosts(p, cost);
        const int64_t f = cost.forward_ns, w = cost.weight_grad_ns, b = cost.backward_ns + w;
        const Simulation h1 =
            timed(scheduleZeroBubble({.worker_of = dealtRound(p, p), .accumulation = m, .costs = costs}), p, m, costs);
        const Simulation h2 =
            timed(scheduleZeroBubble2({.worker_of = dealtRound(p, p), .accumulation = m, .costs = costs}), p, m, costs);
        const Simulation one =
            timed(schedule1F1B({.worker_of = dealtRound(p, p), .accumulation = m}), p, m, equalCosts(p, {f, b, 0, 0}));
        EXPECT_LE(h1.step_ns, one.step_ns);
        EXPECT_LE(h2.step_ns, h1.step_ns);
        if (m >= p) {
          EXPECT_LE(idle(h1), (p - 1) * (f + b - 2 * w));
        }
        const bool equal = f == w && cost.backward_ns == w;
        if (m >= p && equal) {
          EXPECT_EQ(idle(h1), (p - 1) * (f + b - 2 * w));
        }
        if (m >= 2 * p - 1 && equal) {
          EXPECT_EQ(idle(h2), 0);
        }
        for (int s = 0; s < p; ++s) {
          EXPECT_LE(h1.held[static_cast<size_t>(s)], p);  // 1F1B's most
          EXPECT_LE(h2.held[static_cast<size_t>(s)], 2 * p - 1);
        }
      }
}

TEST(ScheduleTheory, ZeroBubbleIsNeverSlowerThan1F1BUnderAnyCosts) {
  std::mt19937 random(5);
  auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 150; ++trial) {
    const int stages = static_cast<int>(1 + below(6)), workers = static_cast<int>(1 + below(stages));
    const int64_t m = 1 + below(10);
    std::vector<StageCost> costs, whole;
    for (int s = 0; s < stages; ++s) {
      costs.push_back({below(20), below(20), below(20), 0});
      whole.push_back({costs.back().forward_ns, costs.back().backward_ns + costs.back().weight_grad_ns, 0, 0});
    }
    std::vector<int> worker_of = dealtRound(stages, workers);
    if (trial % 2)
      for (int& w : worker_of) w = static_cast<int>(below(workers));
    SCOPED_TRACE(cat("trial ", trial, " stages ", stages, " workers ", workers, " micro-batches ", m));
    const int64_t limit = timed(schedule1F1B({.worker_of = worker_of, .accumulation = m}), stages, m, whole).step_ns;
    for (int factor : {1, 2}) {
      const Simulation run = timed((factor == 1 ? scheduleZeroBubble : scheduleZeroBubble2)(
                                       {.worker_of = worker_of, .accumulation = m, .costs = costs}),
                                   stages, m, costs);
      EXPECT_LE(run.step_ns, limit);
      for (int64_t held : run.held) EXPECT_LE(held, factor == 1 ? stages : 2 * stages - 1);
    }
  }
}

TEST(ScheduleTheory, ZeroBubbleHoldsNoMoreThanItMay) {
  std::mt19937 random(7);
  auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 150; ++trial) {
    const int stages = static_cast<int>(1 + below(6)), workers = static_cast<int>(1 + below(stages));
    const int64_t m = 1 + below(10);
    std::vector<StageCost> costs;
    std::vector<int64_t> most_held;
    for (int s = 0; s < stages; ++s) {
      costs.push_back({below(20), below(20), below(20), 0});
      most_held.push_back(1 + below(stages));
    }
    SCOPED_TRACE(cat("trial ", trial, " stages ", stages, " workers ", workers, " micro-batches ", m));
    for (int factor : {1, 2}) {
      const Schedule schedule = (factor == 1 ? scheduleZeroBubble : scheduleZeroBubble2)(
          {.worker_of = dealtRound(stages, workers), .accumulation = m, .costs = costs, .most_held = most_held});
      timed(schedule, stages, m, costs);
      std::vector<int64_t> now(static_cast<size_t>(stages), 0);
      for (const auto& actions : schedule.workers)
        for (const Action& a : actions) {
          int64_t& held = now[static_cast<size_t>(a.stage)];
          if (a.direction == ir::Direction::kForward) ++held;
          if (a.direction == ir::Direction::kWeightGrad) --held;
          ASSERT_LE(held, most_held[static_cast<size_t>(a.stage)]) << "stage " << a.stage;
        }
    }
  }
}

TEST(ScheduleTheory, AllKindsRunForAnyWorkersAndSeveralGroups) {
  std::mt19937 random(6);
  for (int p = 1; p <= 5; ++p)
    for (int64_t a = 1; a <= 7; ++a)
      for (int trial = 0; trial < 4; ++trial) {
        std::vector<int> workers = dealtRound(p, 1 + static_cast<int>(random() % static_cast<unsigned>(p)));
        if (trial > 1)
          for (int& w : workers) w = static_cast<int>(random() % static_cast<unsigned>(p));
        SCOPED_TRACE(cat("stages ", p, " accumulation ", a, " trial ", trial));
        timed(scheduleGPipe({.worker_of = workers, .device_iterations = 2, .accumulation = a}), p, a, {});
        timed(scheduleInterleaved({.worker_of = workers, .device_iterations = 2, .accumulation = a}), p, a, {});
        timed(scheduleZeroBubble({.worker_of = workers, .device_iterations = 2, .accumulation = a}), p, a, {});
        timed(scheduleZeroBubble2({.worker_of = workers, .device_iterations = 2, .accumulation = a}), p, a, {});
      }
}

TEST(ScheduleGPipe, RunsAllForwardsFirst) {
  EXPECT_EQ(printSchedule(scheduleGPipe({.worker_of = {0, 1}, .accumulation = 3})),
            "worker 0: F0 F1 F2 . . B0 B1 B2 U2\n"
            "worker 1: . F0 F1 F2 B0 B1 B2 . U2\n");
}

TEST(ScheduleInterleaved, VisitsEveryWorkerOnceAChunk) {
  EXPECT_EQ(printSchedule(scheduleInterleaved({.worker_of = {0, 1, 0, 1}, .accumulation = 2})),
            "worker 0: F0.0 F0.1 F2.0 F2.1 . B2.0 . B2.1 B0.0 B0.1 U0.1 U2.1\n"
            "worker 1: . F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1 . U1.1 U3.1\n");
}

TEST(ScheduleZeroBubble, PutsWeightGradientsWhereWorkersWaited) {
  EXPECT_EQ(printSchedule(scheduleZeroBubble({.worker_of = {0, 1}, .accumulation = 3})),
            "worker 0: F0 F1 . B0 W0 F2 B1 W1 B2 W2 U2\n"
            "worker 1: . F0 B0 F1 B1 W0 F2 B2 W1 W2 U2\n");
  EXPECT_EQ(printSchedule(scheduleZeroBubble2({.worker_of = {0, 1}, .accumulation = 3})),
            "worker 0: F0 F1 F2 B0 W0 B1 W1 B2 W2 . U2\n"
            "worker 1: . F0 B0 F1 B1 F2 B2 W0 W1 W2 U2\n");
}

TEST(ScheduleName, IsReadBack) {
  for (ScheduleKind kind : {ScheduleKind::kSharded, ScheduleKind::k1F1B, ScheduleKind::kForward, ScheduleKind::kGPipe,
                            ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble, ScheduleKind::kZeroBubble2}) {
    ScheduleKind read = ScheduleKind::kSharded;
    EXPECT_TRUE(parseSchedule(scheduleName(kind), read));
    EXPECT_EQ(read, kind);
  }
  ScheduleKind kept = ScheduleKind::kGPipe;
  EXPECT_FALSE(parseSchedule("1F1B", kept));
  EXPECT_EQ(kept, ScheduleKind::kGPipe);
}

}  // namespace
}  // namespace abele::schedule
