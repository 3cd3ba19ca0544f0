#include "plan/predict.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "../../support/code_of.h"
#include "base/cat.h"
#include "base/error.h"
#include "ir/text.h"
#include "plan/cost.h"

namespace abele::plan {
namespace {

using test::errorOf;

Chain chainWith(std::vector<schedule::StageCost> costs) {
  Chain chain;
  chain.costs.stages = std::move(costs);
  return chain;
}

TEST(Simulate, CountsHopsBetweenDevicesOnly) {
  Chain chain = chainWith({{3, 5, 0, 2}, {3, 5, 0, 2}});
  chain.costs.hop_ns = 7;
  EXPECT_EQ(predict(chain, {}).run.step_ns, 3 + 7 + 3 + 5 + 7 + 5 + 7 + 2);  // all updates wait for the last backward
  chain.device_of = {4, 4};
  const Prediction one = predict(chain, {});
  EXPECT_EQ(one.run.step_ns, 16 + 2 + 2);
  EXPECT_EQ(one.device_of, (std::vector<int>{4}));
  EXPECT_DOUBLE_EQ(one.run.bubble(), 0);
}

TEST(Simulate, FollowsMemoryOverTime) {
  Chain chain = chainWith({{10, 20, 0, 1}});
  chain.costs.memory = {{1000, 50, 7}};
  const Prediction gpipe = predict(chain, {.schedule = schedule::ScheduleKind::kGPipe, .accumulation = 2});
  EXPECT_EQ(gpipe.memory[0], (std::vector<schedule::MemoryPoint>{{0, 1057}, {10, 1107}, {40, 1057}, {60, 1007}}));
  EXPECT_EQ(gpipe.peakBytes(), 1107);
  EXPECT_EQ(predict(chain, {.accumulation = 2}).peakBytes(), 1057);
}

TEST(Simulate, CountsWhatStepsAndActionsTakeBesideTheWork) {
  Chain chain = chainWith({{10, 20, 0, 5}});
  chain.costs.action_ns = 3;
  chain.costs.host_ns = 100;
  const Prediction p = predict(chain, {.accumulation = 2});
  EXPECT_EQ(p.run.step_ns, 10 + 3 + 20 + 3 + 10 + 3 + 20 + 3 + 5 + 100);
  EXPECT_EQ(p.run.workers[0].busy_ns, 65);
}

// Stage 1 reads what stage 0 stashed until the end of its weight gradient.
TEST(Simulate, WaitsForFreeFrames) {
  Chain chain = chainWith({{10, 0, 0, 0}, {10, 50, 50, 0}});
  const int64_t free = predict(chain, {.accumulation = 4}).run.step_ns;
  chain.costs.memory = {{0, 100, 0, {}}, {0, 100, 0, {}}};
  const Prediction own = predict(chain, {.accumulation = 4});
  EXPECT_EQ(own.run.step_ns, free);
  EXPECT_EQ(own.run.frames, (std::vector<int64_t>{2, 1}));
  using ir::Direction;
  chain.costs.memory[0].users = {{0, Direction::kForward}, {1, Direction::kForward}, {1, Direction::kBackward}};
  for (schedule::ScheduleKind kind :
       {schedule::ScheduleKind::k1F1B, schedule::ScheduleKind::kGPipe, schedule::ScheduleKind::kZeroBubble}) {
    const Prediction p = predict(chain, {.schedule = kind, .accumulation = 4});
    const auto& first = p.run.actions[0];
    for (const schedule::TimedAction& forward : first) {
      const int64_t before = forward.action.micro_batch - p.run.frames[0];
      if (forward.action.direction != Direction::kForward || before < 0) continue;
      for (const schedule::TimedAction& user : p.run.actions[1]) {
        if (user.action.micro_batch != before || user.action.direction != Direction::kBackward) continue;
        EXPECT_GE(forward.start_ns, user.end_ns) << schedule::scheduleName(kind);
      }
    }
    EXPECT_EQ(p.run.workers[0].peak_bytes, 100 * p.run.frames[0]) << schedule::scheduleName(kind);
  }
}

// For any times of tasks: a forward waits until all users of the frame that it takes again have ended.
TEST(Simulate, WaitsForAsManyFramesAsItCounts) {
  using ir::Direction;
  std::mt19937 random(3);
  const auto time = [&] { return static_cast<int64_t>(1 + random() % (random() % 4 == 0 ? 500 : 10)); };
  for (int run = 0; run < 200; ++run) {
    Chain chain = chainWith({});
    for (int s = 0; s < 3; ++s) chain.costs.stages.push_back({time(), time(), time(), 0});
    const std::vector<Task> users = {{0, Direction::kForward}, {1, Direction::kForward}, {2, Direction::kWeightGrad}};
    chain.costs.memory = {{0, 10, 0, users}, {0, 0, 0, {}}, {0, 0, 0, {}}};
    for (schedule::ScheduleKind kind :
         {schedule::ScheduleKind::k1F1B, schedule::ScheduleKind::kGPipe, schedule::ScheduleKind::kZeroBubble}) {
      const Prediction p = predict(chain, {.schedule = kind, .accumulation = 8});
      for (const schedule::TimedAction& taker : p.run.actions[0])
        for (const Task& user : users)
          for (const schedule::TimedAction& a : p.run.actions[static_cast<size_t>(user.stage)])
            if (taker.action.direction == Direction::kForward && a.action.direction == user.direction &&
                a.action.micro_batch == taker.action.micro_batch - p.run.frames.at(0)) {
              ASSERT_GE(taker.start_ns, a.end_ns) << schedule::scheduleName(kind) << ", run " << run;
            }
    }
  }
}

// The gradient of stage 1 waits for stage 0 in a ring of its own; what stage 1 keeps does not.
TEST(Simulate, WaitsForFreeFramesOfFurtherRings) {
  Chain chain = chainWith({{10, 100, 0, 0}, {10, 10, 0, 0}});
  using ir::Direction;
  const Task forward{1, Direction::kForward}, backward{1, Direction::kBackward}, reader{0, Direction::kBackward};
  chain.costs.memory = {{0, 0, 0}, {.stash_bytes = 100, .users = {forward, backward, reader}}};
  const Prediction one = predict(chain, {.accumulation = 6});
  EXPECT_EQ(one.run.workers[1].peak_bytes, 200);
  chain.costs.memory[1].rings = {{90, {forward, backward}}, {10, {backward, reader}}};
  chain.costs.memory[1].apart_transient_bytes = 7;
  const Prediction two = predict(chain, {.accumulation = 6});
  EXPECT_EQ(two.run.frames[1], 1);
  EXPECT_EQ(two.run.is_apart, (std::vector<bool>{false, true}));
  EXPECT_EQ(two.run.workers[1].peak_bytes, 90 + 2 * 10 + 7);
  EXPECT_EQ(two.run.step_ns, one.run.step_ns);
  EXPECT_EQ(predict(chain, {.accumulation = 1}).run.workers[1].peak_bytes, 100);
  std::vector<int64_t> ends;  // of the readers
  for (const schedule::TimedAction& a : two.run.actions[0])
    if (a.action.direction == Direction::kBackward) ends.push_back(a.end_ns);
  for (const schedule::TimedAction& a : two.run.actions[1])
    if (a.action.direction == Direction::kBackward && a.action.micro_batch >= 2) {
      EXPECT_GE(a.start_ns, ends.at(static_cast<size_t>(a.action.micro_batch - 2)));
    }
}

TEST(Simulate, TakesTheMemoryOfTheKindOfSchedule) {
  Chain chain = chainWith({{1, 1, 1, 0}, {1, 1, 1, 0}});
  chain.costs.memory = {{1000, 10, 1}, {1000, 10, 1}};
  chain.split_memory = {{1000, 20, 2}, {1000, 20, 2}};
  chain.sharded_memory = {{1000, 30, 3}, {1000, 30, 3}};
  const auto peak = [&](schedule::ScheduleKind kind) {
    return predict(chain, {.schedule = kind, .accumulation = 4}).peakBytes();
  };
  EXPECT_EQ(peak(schedule::ScheduleKind::k1F1B), 1000 + 2 * 10 + 1);
  EXPECT_EQ(peak(schedule::ScheduleKind::kGPipe), 1000 + 4 * 10 + 1);
  EXPECT_EQ(peak(schedule::ScheduleKind::kZeroBubble), 1000 + 2 * 20 + 2);
  EXPECT_EQ(peak(schedule::ScheduleKind::kSharded), 1000 + 30 + 3);
}

// Devices that share cores: the work takes as long as the cores need for it, and what is alone goes at full speed.
TEST(Simulate, SharesCores) {
  for (int devices : {2, 4, 8}) {
    Chain chain;
    for (int s = 0; s < devices; ++s) chain.costs.stages.push_back({800 / devices, 1600 / devices, 0, 0});
    const auto step = [&](int cores, schedule::ScheduleKind kind) {
      chain.costs.cores = cores;
      const Prediction p = predict(chain, {.schedule = kind, .accumulation = 16});
      for (const auto& actions : p.run.actions)
        for (size_t i = 1; i < actions.size(); ++i) EXPECT_GE(actions[i].start_ns, actions[i - 1].end_ns);
      return p.run.step_ns;
    };
    const int64_t alone = step(0, schedule::ScheduleKind::k1F1B);
    EXPECT_EQ(step(devices, schedule::ScheduleKind::k1F1B), alone);
    EXPECT_NEAR(static_cast<double>(step(1, schedule::ScheduleKind::k1F1B)), 16 * 2400, 20);
    EXPECT_GE(step(2, schedule::ScheduleKind::k1F1B), alone);
    EXPECT_NEAR(static_cast<double>(step(1, schedule::ScheduleKind::kSharded)), 16 * 2400, 20);
    EXPECT_EQ(step(0, schedule::ScheduleKind::kSharded), 16 * 2400);
  }
}

TEST(Simulate, TakesAThousandDevices) {
  Chain chain = chainWith(std::vector<schedule::StageCost>(1024, {300, 200, 100, 50}));
  chain.costs.memory.assign(1024, {5000, 10, 1});
  const int64_t m = 1024, p = 1024;
  const auto run = [&](schedule::ScheduleKind kind) { return predict(chain, {.schedule = kind, .accumulation = m}); };
  for (schedule::ScheduleKind kind : {schedule::ScheduleKind::kGPipe, schedule::ScheduleKind::k1F1B}) {
    const Prediction step = run(kind);
    EXPECT_EQ(step.run.step_ns, (m + p - 1) * 600 + 50) << schedule::scheduleName(kind);
    EXPECT_EQ(step.run.workers[0].peak_bytes, 5000 + 1 + 10 * (kind == schedule::ScheduleKind::kGPipe ? m : p));
    EXPECT_EQ(step.run.workers[1023].peak_bytes, 5000 + 1 + 10 * (kind == schedule::ScheduleKind::kGPipe ? m : 1));
  }
  EXPECT_EQ(run(schedule::ScheduleKind::kSharded).run.step_ns, m * p * 600 + 50);
  const Prediction zero_bubble = run(schedule::ScheduleKind::kZeroBubble);
  EXPECT_LT(zero_bubble.run.step_ns, (m + p - 1) * 600 + 50);
  EXPECT_GE(zero_bubble.run.step_ns, m * 600 + 50);
}

TEST(Simulate, KeepsUpdatesBetweenGroups) {
  const Prediction p = predict(chainWith({{1, 1, 0, 10}, {1, 1, 0, 3}}), {.device_iterations = 2, .accumulation = 1});
  EXPECT_EQ(p.run.step_ns, 2 * (4 + 10));
  EXPECT_EQ(p.run.workers[1].busy_ns, 2 * 5);
}

TEST(Simulate, RunsTheWholeBackwardWhereItIsNotSplit) {
  const Chain chain = chainWith({{1, 2, 4, 0}});
  EXPECT_EQ(predict(chain, {.accumulation = 3}).run.step_ns, 21);
  EXPECT_EQ(predict(chain, {.schedule = schedule::ScheduleKind::kZeroBubble, .accumulation = 3}).run.step_ns, 21);
}

TEST(Simulate, TimesInference) {
  const Prediction p =
      predict(chainWith({{2, 9, 9, 9}, {3, 9, 9, 9}}),
              {.schedule = schedule::ScheduleKind::kForward, .training = false, .device_iterations = 4});
  EXPECT_EQ(p.run.step_ns, 2 + 4 * 3);
}

TEST(Simulate, NeverBeatsTheWorkAndTheWayThroughThePipeline) {
  std::mt19937 random(3);
  auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 200; ++trial) {
    Chain chain;
    const int stages = static_cast<int>(1 + below(6)), devices = static_cast<int>(1 + below(stages));
    int64_t way = 0;
    for (int s = 0; s < stages; ++s) {
      chain.costs.stages.push_back({below(9), below(9), below(9), below(3)});
      chain.device_of.push_back(static_cast<int>(below(devices)));
      way += chain.costs.stages.back().forward_ns + chain.costs.stages.back().backward_ns;
    }
    PredictOptions options;
    options.schedule =
        std::vector{schedule::ScheduleKind::kSharded, schedule::ScheduleKind::k1F1B, schedule::ScheduleKind::kGPipe,
                    schedule::ScheduleKind::kInterleaved, schedule::ScheduleKind::kZeroBubble}[below(5)];
    options.accumulation = 1 + below(6);
    const Prediction p = predict(chain, options);
    EXPECT_GE(p.run.step_ns, way);
    for (const schedule::WorkerTimes& w : p.run.workers) EXPECT_GE(p.run.step_ns, w.busy_ns + w.idle_ns);
    for (const auto& actions : p.run.actions)
      for (size_t i = 1; i < actions.size(); ++i) ASSERT_GE(actions[i].start_ns, actions[i - 1].end_ns);
  }
}

// All ways to cut, for comparison.
int64_t bestCut(const std::vector<schedule::StageCost>& costs, size_t begin, int parts) {
  int64_t time = 0, best = INT64_MAX;
  for (size_t end = begin + 1; end + static_cast<size_t>(parts) - 1 <= costs.size(); ++end) {
    time += costs[end - 1].forward_ns;
    if (parts == 1 && end != costs.size()) continue;
    best = std::min(best, parts == 1 ? time : std::max(time, bestCut(costs, end, parts - 1)));
  }
  return best;
}

TEST(Partition, FindsTheFastestSlowestPart) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<schedule::StageCost> costs;
    for (unsigned i = 0, n = 1 + random() % 8; i < n; ++i)
      costs.push_back({static_cast<int64_t>(random() % 10), 0, 0, 0});
    const int parts = static_cast<int>(1 + random() % costs.size());
    const Chain cut = partition(chainWith(costs), parts);
    ASSERT_EQ(cut.costs.stages.size(), static_cast<size_t>(parts));
    int64_t slowest = 0, all = 0, given = 0;
    for (const schedule::StageCost& c : cut.costs.stages) {
      slowest = std::max(slowest, c.forward_ns);
      all += c.forward_ns;
    }
    for (const schedule::StageCost& c : costs) given += c.forward_ns;
    EXPECT_EQ(slowest, bestCut(costs, 0, parts)) << "trial " << trial;
    EXPECT_EQ(all, given);
  }
}

TEST(ChainText, IsReadBack) {
  Chain chain = chainWith({{1, 2, 3, 4}, {5, 6, 7, 8}});
  chain.costs.hop_ns = 9;
  chain.costs.memory = {{10, 11, 12}, {13, 14, 15}};
  chain.device_of = {1, 0};
  chain.costs.action_ns = 14;
  chain.costs.host_ns = 15;
  chain.costs.cores = 2;
  chain.costs.memory[0].users = {{0, ir::Direction::kForward}, {1, ir::Direction::kWeightGrad}};
  chain.split_memory = {{10, 21, 22, {{0, ir::Direction::kUpdate}}}, {13, 24, 25}};
  chain.split_memory[1].apart_transient_bytes = 38;
  chain.split_memory[1].rings = {{36, {{1, ir::Direction::kBackward}}}, {37, {{1, ir::Direction::kForward}}}};
  chain.sharded_memory = {{10, 31, 32}, {13, 34, 35}};
  const Chain read = parseChain(chainJson(chain));
  EXPECT_EQ(chainJson(read), chainJson(chain));
  EXPECT_EQ(read.costs.stages, chain.costs.stages);
  EXPECT_EQ(read.costs.memory, chain.costs.memory);
  EXPECT_EQ(read.split_memory, chain.split_memory);
  EXPECT_EQ(read.sharded_memory, chain.sharded_memory);
  EXPECT_EQ(read.device_of, chain.device_of);
}

TEST(ChainText, RepeatsStages) {
  const Chain chain = parseChain(R"({"stages": [{"forward_ns": 1.6}, {"repeat": 3, "update_ns": 1e3}]})");
  EXPECT_EQ(chain.costs.stages,
            (std::vector<schedule::StageCost>{{2, 0, 0, 0}, {0, 0, 0, 1000}, {0, 0, 0, 1000}, {0, 0, 0, 1000}}));
  EXPECT_TRUE(chain.device_of.empty());
}

TEST(ChainText, SaysWhatIsWrong) {
  for (const auto& [text, found] : std::vector<std::pair<std::string, std::string>>{
           {"", "unexpected end of input"},
           {"[]", "a list"},
           {"{\"stages\": [{\"forward\": 1}]}", "unknown key \"forward\""},
           {"{\"hops\": 1}", "unknown key \"hops\""},
           {"{\"stages\": [{\"forward_ns\": x}]}", "invalid literal"},
           {"{\"stages\": [{\"forward_ns\": 1e300}]}", "not a number"},
           {"{\"stages\": [{\"repeat\": 0}]}", "repeat 0"},
           {"{\"stages\": [{\"users\": [\"X0\"]}]}", "\"X0\""},
           {"{\"stages\": [{\"users\": [\"F\"]}]}", "\"F\""},
           {"{\"stages\": [{\"split\": {\"forward_ns\": 1}}]}", "unknown key \"forward_ns\""},
           {"{\"stages\": [{\"repeat\": 1e9}]}", "repeat 1000000000"},
           {R"({"stages": [{"rings": [{"bytes": 1}]}]})", "a ring without users"},
           {R"({"stages": [{"rings": [{"size": 1}]}]})", "unknown key \"size\""},
           {R"({"stages": [{"repeat": 5e4, "users": ["F0", "B0", "W0"]}]})", "150000 users"},
           {"{\"stages\": []} {", "expected end of input"},
           {"{\"sta", "missing closing quote"},
       }) {
    const std::string fault = errorOf([&text = text] { parseChain(text); });
    EXPECT_NE(fault.find("E0404"), std::string::npos) << text << "\n" << fault;
    EXPECT_NE(fault.find(found), std::string::npos) << text << "\n" << fault;
  }
  EXPECT_NE(errorOf([] { parseChain("{\n\"stages\":\n[1"); }).find("line 3"), std::string::npos);
  EXPECT_NE(errorOf([] {
              parseChain("{\"hop_ns\": 1,\n\"hop_ns\": 2}");
            }).find("\"hop_ns\" twice in one object\n  at        line 2"),
            std::string::npos);
}

TEST(ChainText, SaysWhereItIsWrong) {
  const std::string fault = errorOf([] { parseChain("{\"stages\": [{},\n {\"split\": {\"users\": [\"F0\",\n3]}}]}"); });
  EXPECT_NE(fault.find("at        line 3, stages[1].split.users[1]"), std::string::npos) << fault;
}

TEST(Predict, RefusesWhatDoesNotFit) {
  const Chain two = chainWith({{1, 1, 1, 1}, {1, 1, 1, 1}});
  Chain negative = two, some = two;
  negative.costs.stages[1].backward_ns = -1;
  some.device_of = {0};
  Chain stranger = two;
  stranger.costs.memory = {{0, 1, 0, {{5, ir::Direction::kForward}}}, {}};
  for (const std::function<void()>& fn : std::vector<std::function<void()>>{
           [] { predict({}, {}); }, [&] { predict(negative, {}); }, [&] { predict(some, {}); },
           [&] { predict(stranger, {}); }, [&] { predict(two, {.accumulation = 0}); },
           [&] { predict(two, {.schedule = schedule::ScheduleKind::kForward}); },
           [&] { predict(two, {.training = false}); },
           [&] { predict(two, {.schedule = schedule::ScheduleKind::kForward, .training = false, .accumulation = 2}); },
           [&] { partition(two, 3); }, [&] { deal(two, 0, 1); }})
    EXPECT_NE(errorOf(fn).find("E0404"), std::string::npos) << errorOf(fn);
}

TEST(ChromeTrace, HasABarForEveryAction) {
  const std::string trace = chromeTrace(predict(chainWith({{1500, 1, 0, 0}, {1, 1, 0, 0}}), {}));
  EXPECT_NE(trace.find(R"({"name": "F0", "cat": "F", "ph": "X", "pid": 0, "tid": 0, "ts": 0.000, "dur": 1.500,)"),
            std::string::npos)
      << trace;
  EXPECT_NE(trace.find(R"("name": "device 1")"), std::string::npos) << trace;
}

TEST(Costs, FollowShapesAndDirections) {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  input %0 "x": f32[256,256] = argument(0)
  %1: f32[256,256] = aten.mm(%0, %0) {stage=0}
  %2: f32[256,256] = aten.relu(%1) {stage=1}
  %3: f32[256,256] = aten.mm(%2, %2) {dir=bwd, stage=1}
  %4: f32[256,256] = aten.mm(%3, %3) {dir=wgrad, stage=1}
  output loss %2
}
)");
  const std::vector<schedule::StageCost> costs = estimateCosts(graph);
  EXPECT_GT(costs[0].forward_ns, 5 * costs[1].forward_ns);  // 2 * 256^3 operations
  EXPECT_EQ(costs[1].backward_ns, costs[0].forward_ns);
  EXPECT_EQ(costs[1].weight_grad_ns, costs[0].forward_ns);
  EXPECT_EQ(costs[0].backward_ns, 0);
  ir::Graph measured = graph;
  measured.nodes[0].time_ns = 77;
  EXPECT_EQ(measuredCosts(measured)[0].forward_ns, 77);
  EXPECT_EQ(measuredCosts(measured)[1], costs[1]);
}

}  // namespace
}  // namespace abele::plan
