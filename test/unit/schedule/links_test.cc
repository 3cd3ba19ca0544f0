// Machines with links: times of handovers and gradient sums, computed by hand.
#include "schedule/links.h"

#include <gtest/gtest.h>

#include <random>

#include "../../support/code_of.h"
#include "base/error.h"
#include "ir/text.h"
#include "plan/cost.h"
#include "schedule/machine_text.h"
#include "split/auto_split.h"
#include "split/explain.h"

namespace abele::schedule {
namespace {

using test::errorOf;

using ir::Direction;

constexpr Task forward(int32_t stage) { return {stage, Direction::kForward}; }
constexpr Task backward(int32_t stage) { return {stage, Direction::kBackward}; }

// Hosts of four devices: one byte per nanosecond within a host, a tenth of that between hosts.
Machine hostsOfFour(bool is_shared = false) {
  return {.links = {{"inside", 4, 5, 1'000'000'000}, {"between", 0, 50, 100'000'000, is_shared}}};
}

plan::Chain chainOf(int stages, StageCost cost, int64_t bytes) {
  plan::Chain chain;
  chain.costs.stages.assign(static_cast<size_t>(stages), cost);
  chain.machine = hostsOfFour();
  for (int32_t s = 0; s + 1 < stages; ++s) {
    chain.handovers.push_back({forward(s), forward(s + 1), bytes});
    chain.handovers.push_back({backward(s + 1), backward(s), bytes});
  }
  return chain;
}

TEST(Machines, FindTheInnermostLink) {
  Machine machine = hostsOfFour();
  EXPECT_EQ(machine.linkBetween(0, 3), 0);
  EXPECT_EQ(machine.linkBetween(3, 4), 1);
  EXPECT_EQ(machine.linkBetween(6, 6), -1);
  machine.space_devices = 2;
  EXPECT_EQ(machine.linkBetween(2, 3), -1);
  EXPECT_EQ(machine.linkBetween(1, 2), 0);
  machine.links.back().devices = 8;
  EXPECT_NE(errorOf([&] { machine.linkBetween(7, 8); }).find("no link between the devices 7 and 8"), std::string::npos);
}

TEST(Machines, ChangeNothingInOneMemory) {
  plan::Chain plain = chainOf(4, {30, 40, 20, 5}, 1000);
  plain.costs.hop_ns = 7;
  plain.replication.replicas = 3;
  plain.gradient_bytes.assign(4, 1000);
  plain.machine = {};
  plan::Chain bare = plain;
  bare.handovers.clear();
  bare.gradient_bytes.clear();
  bare.replication = {};
  const plan::PredictOptions options{.accumulation = 6};
  const int64_t step = plan::predict(bare, options).run.step_ns;
  EXPECT_EQ(plan::predict(plain, options).run.step_ns, step);
  plain.machine = hostsOfFour();
  plain.machine.space_devices = 4;
  plain.replication.replicas = 1;
  EXPECT_EQ(plan::predict(plain, options).run.step_ns, step);
  EXPECT_TRUE(plan::predict(plain, options).transfers.empty());
}

TEST(Transfers, TakeTheTimeOfTheirLink) {
  plan::Chain chain = chainOf(2, {100, 200, 0, 0}, 30);
  EXPECT_EQ(plan::predict(chain, {}).run.step_ns, 100 + 35 + 100 + 200 + 35 + 200);
  chain.device_of = {3, 4};
  EXPECT_EQ(plan::predict(chain, {}).run.step_ns, 100 + 350 + 100 + 200 + 350 + 200);
  EXPECT_EQ(plan::predict(chain, {.schedule = ScheduleKind::kSharded}).run.step_ns, 100 + 350 + 100 + 200 + 350 + 200);
}

// Four forwards. The link is slower than the work, so messages queue up after the first one.
TEST(Transfers, TakeTurnsOnALinkAndOverlapWithWork) {
  plan::Chain chain = chainOf(2, {100, 0, 0, 0}, 145);
  const plan::Prediction p =
      plan::predict(chain, {.schedule = ScheduleKind::kForward, .training = false, .device_iterations = 4});
  EXPECT_EQ(p.run.step_ns, 100 + 4 * 150 + 100);
  EXPECT_EQ(p.run.transfers[0].messages, 4);
  EXPECT_EQ(p.run.transfers[0].busy_ns, 600);
  EXPECT_EQ(p.run.transfers[0].waiting_ns, 50 + 100 + 150);
  EXPECT_EQ(p.run.actions[0].back().end_ns, 400);  // the sender does not wait
}

// A value that skips a stage has its own transfer.
TEST(Transfers, MaySkipStages) {
  plan::Chain chain = chainOf(3, {100, 0, 0, 0}, 0);
  chain.handovers.push_back({forward(0), forward(2), 1000});
  const plan::PredictOptions options{.schedule = ScheduleKind::kForward, .training = false};
  EXPECT_EQ(plan::predict(chain, options).run.step_ns, 100 + 5 + 1000 + 100);
}

TEST(Transfers, ShareALinkBetweenHosts) {
  plan::Chain chain = chainOf(2, {100, 0, 0, 0}, 30);
  chain.replication = {.replicas = 4, .is_together = true};
  const plan::PredictOptions options{.schedule = ScheduleKind::kForward, .training = false};
  EXPECT_EQ(plan::predict(chain, options).run.step_ns, 100 + 50 + 300 + 100);
  chain.machine = hostsOfFour(/*is_shared=*/true);
  EXPECT_EQ(plan::predict(chain, options).run.step_ns, 100 + 50 + 4 * 300 + 100);
  chain.replication.is_together = false;  // a whole replica in a host
  EXPECT_EQ(plan::predict(chain, options).run.step_ns, 100 + 35 + 100);
}

TEST(Transfers, FreeTheSendersFrameWhenTheyHaveArrived) {
  plan::Chain chain = chainOf(2, {10, 0, 0, 0}, 10);
  chain.costs.stages[1] = {10, 500, 0, 0};
  chain.costs.memory = {{0, 100, 0, {{0, Direction::kForward}, {1, Direction::kBackward}}}, {0, 100, 0, {}}};
  const plan::Prediction p = plan::predict(chain, {.schedule = ScheduleKind::kGPipe, .accumulation = 2});
  EXPECT_EQ(p.run.workers[0].peak_bytes, p.run.frames[0] * (100 + 10));  // and the gradient that comes back
  EXPECT_TRUE(p.run.complete);
}

// If no message waits for another, a link takes the same time as a hop.
TEST(Transfers, AreHopsWhereNoneWaits) {
  std::mt19937 random(5);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 200; ++trial) {
    const int stages = static_cast<int>(2 + below(5)), devices = static_cast<int>(2 + below(stages - 1));
    const int64_t hop = below(20);
    plan::Chain linked = chainOf(stages, {}, 0);
    for (StageCost& c : linked.costs.stages) c = {20 + below(90), 20 + below(90), 20 + below(50), below(9)};
    for (int s = 0; s < stages; ++s) linked.device_of.push_back(s % devices);
    linked.machine.links = {{"all", 0, hop, 1'000'000'000}};
    linked.costs.hop_ns = hop;
    plan::Chain plain = linked;
    plain.machine = {};
    plan::PredictOptions options{.accumulation = 1 + below(6)};
    options.schedule = std::vector{ScheduleKind::kSharded, ScheduleKind::k1F1B, ScheduleKind::kGPipe,
                                   ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble}[below(5)];
    const plan::Prediction a = plan::predict(linked, options), b = plan::predict(plain, options);
    int64_t waiting = 0;
    for (const TransferTimes& t : a.run.transfers) waiting += t.waiting_ns;
    if (waiting == 0) {
      EXPECT_EQ(a.run.step_ns, b.run.step_ns) << "trial " << trial;
    }
    if (devices == stages) {
      EXPECT_EQ(waiting, 0) << "trial " << trial;
    }
    EXPECT_GE(a.run.step_ns, b.run.step_ns) << "trial " << trial;
    linked.costs.cores = 1;  // and the third
    EXPECT_GE(plan::predict(linked, options).run.step_ns, b.run.step_ns) << "trial " << trial;
  }
}

TEST(Rings, AreAsFastAsTheirSlowestLink) {
  const std::vector<int> two = {0, 1};
  const std::vector<int64_t> bytes = {800, 80};
  // Two replicas of two devices in one host: 2 messages of half the bytes.
  EXPECT_EQ(ringTimes(bytes, two, hostsOfFour(), {.replicas = 2}), (std::vector<int64_t>{2 * 405, 2 * 45}));
  // Four replicas over two hosts: 6 messages of a quarter, as fast as between hosts.
  EXPECT_EQ(ringTimes(bytes, two, hostsOfFour(), {.replicas = 4}), (std::vector<int64_t>{6 * 2050, 6 * 250}));
  // With the replicas side by side, each ring is within one host.
  EXPECT_EQ(ringTimes(bytes, two, hostsOfFour(), {.replicas = 4, .is_together = true}),
            (std::vector<int64_t>{6 * 205, 6 * 25}));
  // Rings of both devices cross between the hosts at once.
  EXPECT_EQ(ringTimes(bytes, two, hostsOfFour(true), {.replicas = 4}), (std::vector<int64_t>{6 * 4050, 6 * 450}));
  EXPECT_TRUE(ringTimes(bytes, two, hostsOfFour(), {}).empty());
}

TEST(Rings, StandBeforeUpdatesOrBesideTheWork) {
  plan::Chain chain = chainOf(2, {100, 200, 0, 10}, 0);
  chain.machine.links[0] = {"inside", 4, 0, 1'000'000'000};
  chain.gradient_bytes = {300, 60};
  chain.replication = {.replicas = 2};
  // All backwards end at 600; sums of 300 ns and 60 ns; then the updates.
  EXPECT_EQ(plan::predict(chain, {}).run.step_ns, 600 + 300 + 10);
  EXPECT_EQ(plan::predict(chain, {.device_iterations = 2}).run.step_ns, 2 * (600 + 300 + 10));
  chain.gradient_bytes = {30, 120};
  EXPECT_EQ(plan::predict(chain, {}).run.step_ns, 600 + 120 + 10);
  chain.replication.is_early = true;  // stage 1 has ended at 400
  EXPECT_EQ(plan::predict(chain, {}).run.step_ns, 600 + 30 + 10);
  // Stages of one device compute their sums one after the other, and the first one updates meanwhile.
  chain.device_of = {0, 0};
  EXPECT_EQ(plan::predict(chain, {}).run.step_ns, 600 + 30 + 10);
  chain.replication.is_early = false;
  EXPECT_EQ(plan::predict(chain, {}).run.step_ns, 600 + 120 + 30 + 10);
}

TEST(Links, OfAThousandDevices) {
  plan::Chain chain = chainOf(1024, {300, 200, 100, 50}, 100);
  chain.gradient_bytes.assign(1024, 4000);
  chain.replication = {.replicas = 8, .is_early = true};
  const plan::Prediction p = plan::predict(chain, {.accumulation = 256});
  plan::Chain fast = chain;
  fast.machine = {};
  EXPECT_GT(p.run.step_ns, plan::predict(fast, {.accumulation = 256}).run.step_ns);
  EXPECT_EQ(p.transfers.size(), 2U * 1023);
}

TEST(Links, ChooseOtherCuts) {
  // The pieces have equal work. The middle one hands over many bytes, its neighbours few.
  split::SplitChain chain{.training = true};
  for (int i = 0; i < 8; ++i) {
    split::Piece piece{.first = i, .forward_ns = 1000, .backward_ns = 1000};
    if (i > 0) piece.crossing_bytes = piece.returning_bytes = i == 4 ? 400'000 : 100;
    chain.pieces.push_back(piece);
  }
  split::SplitOptions options{.devices = 2, .accumulation = 16};
  // Without links, bytes cost some memory time; this makes them equal.
  chain.pieces[4].crossing_bytes = 100;
  EXPECT_EQ(split::autoSplit(chain, options).front().cuts, (std::vector<size_t>{4}));
  chain.pieces[4].returning_bytes = 400'000;
  EXPECT_EQ(split::autoSplit(chain, options).front().cuts, (std::vector<size_t>{4}));
  options.machine = {.links = {{"slow", 0, 0, 10'000'000'000}}};
  EXPECT_NE(split::autoSplit(chain, options).front().cuts, (std::vector<size_t>{4}));
  EXPECT_FALSE(split::autoSplit(chain, options).front().prediction.transfers.empty());
}

TEST(Links, OfAGraphsValues) {
  const ir::Graph graph = ir::parse(R"(
graph @main {training} {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1}
  stage 2 "s2" {device=1}
  input %0 "x": f32[256,256] = argument(0)
  %1: f32[256,256] = aten.relu(%0) {stage=0}
  %2: f32[16,256] = aten.relu(%0) {stage=0}
  %3: f32[256,256] = aten.mm(%1, %1) {stage=1}
  %4: f32[256,256] = aten.mm(%1, %3) {stage=2}
  %5: f32[256,256] = aten.mm(%4, %2) {dir=bwd, stage=2}
  %6: f32[256,256] = aten.mm(%5, %1) {dir=bwd, stage=1}
  %7: f32[256,256] = aten.mm(%6, %1) {dir=bwd, stage=0}
  output loss %4
}
)");
  // %1 once to device 1, %2 to the backward that reads it first, %6 back; between stages 1 and 2 nothing.
  EXPECT_EQ(plan::handoversOf(graph), (std::vector<Handover>{{forward(0), forward(1), 4 * 256 * 256},
                                                             {forward(0), backward(2), 4 * 16 * 256},
                                                             {backward(1), backward(0), 4 * 256 * 256}}));
}

TEST(Links, OfTransfersThatThePlanMade) {
  const ir::Graph graph = ir::parse(R"(
graph @main {
  stage 0 "s0" {device=0}
  stage 1 "s1" {device=1, space=1}
  input %0 "x": f32[256] = argument(0)
  %1: f32[256] = aten.relu(%0) {stage=0}
  %2: f32[256] = abele.transfer(none, %1) {stage=1}
  %3: f32[256] = aten.relu(%2) {stage=1}
  output result(0) %3
}
)");
  plan::Chain chain = chainOf(2, {100, 0, 0, 0}, 0);
  chain.costs.memory.assign(2, {0, 50, 0});
  chain.handovers = plan::handoversOf(graph);
  EXPECT_EQ(chain.handovers, (std::vector<Handover>{{forward(0), forward(1), 1024, true}}));
  const plan::Prediction p = plan::predict(chain, {.schedule = ScheduleKind::kForward, .training = false});
  EXPECT_EQ(p.run.step_ns, 100 + 5 + 1024 + 100);
  EXPECT_EQ(p.peakBytes(), 50);  // bytes of the plan are not counted twice
}

TEST(MachineText, IsReadBackWithinCosts) {
  const std::string text = R"({"machine": {"name": "two \"hosts\"", "device": {"bytes": 8e10, "flops_per_s": 4e14},
    "space_devices": 2, "links": [{"name": "a", "devices": 4, "latency_ns": 3, "bytes_per_s": 1e9},
    {"name": "b", "bytes_per_s": 5, "shared": true}]}, "replicas": 3, "replicas_together": true, "early_sums": true,
    "handovers": [{"from": "F0", "to": "B2", "bytes": 9, "placed": true}],
    "stages": [{"forward_bytes": 7, "backward_bytes": 8, "gradient_bytes": 6, "repeat": 3}]})";
  const plan::Chain chain = plan::parseChain(text);
  EXPECT_EQ(chain.machine.name, "two \"hosts\"");
  EXPECT_EQ(chain.machine.links[1], (Link{"b", 0, 0, 5, true}));
  EXPECT_EQ(chain.machine.device_bytes, 80'000'000'000);
  EXPECT_EQ(chain.replication, (Replication{3, true, true}));
  EXPECT_EQ(chain.gradient_bytes, (std::vector<int64_t>{6, 6, 6}));
  EXPECT_EQ(chain.handovers, (std::vector<Handover>{{forward(0), forward(1), 7},
                                                    {forward(1), forward(2), 7},
                                                    {backward(1), backward(0), 8},
                                                    {backward(2), backward(1), 8},
                                                    {forward(0), backward(2), 9, true}}));
  const plan::Chain read = plan::parseChain(plan::chainJson(chain));
  EXPECT_EQ(read.machine, chain.machine);
  EXPECT_EQ(read.handovers, chain.handovers);
  EXPECT_EQ(plan::chainJson(read), plan::chainJson(chain));
}

TEST(MachineText, SaysWhatIsWrong) {
  for (const auto& [text, found] : std::vector<std::pair<std::string, std::string>>{
           {"", "a machine that cannot be read: syntax error while parsing value - unexpected end of input"},
           {R"({"link": []})", "unknown key \"link\""},
           {R"({"links": [{"name": "a"}]})", "0 bytes a second"},
           {R"({"links": [{"bytes_per_s": 1, "latency_ns": -1}]})", "an impossible link"},
           {R"({"links": [{"bytes_per_s": 1, "shared": 1}]})", "a number"},
           {R"({"links": [{"bytes_per_s": 1}, {"bytes_per_s": 1}]})", "a link among 0 devices"},
           {R"({"space_devices": 3, "links": [{"bytes_per_s": 1, "devices": 4}]})", "around groups of 3"},
           {R"({"space_devices": 0})", "0 devices that share memory"},
           {R"({"device": {"cores": 4}})", "unknown key \"cores\""},
       }) {
    const std::string fault = errorOf([&text = text] { parseMachine(text); });
    EXPECT_NE(fault.find("E0404"), std::string::npos) << text << "\n" << fault;
    EXPECT_NE(fault.find(found), std::string::npos) << text << "\n" << fault;
  }
  EXPECT_NE(
      errorOf([] { parseMachine("{\n\"name\": \"a\",\n\"space_devices\": 0.2\n,\n \"x\": 1\n}"); }).find("line 5"),
      std::string::npos);
  EXPECT_NE(errorOf([] { plan::parseChain(std::string(100'000, '[')); }).find("more than 32 levels"),
            std::string::npos);
}

TEST(Links, RefuseWhatCannotBe) {
  const plan::Chain good = chainOf(3, {1, 1, 1, 1}, 1);
  std::vector<plan::Chain> bad(6, good);
  bad[0].handovers[0] = {forward(1), forward(0), 1};
  bad[1].handovers[0] = {backward(0), backward(1), 1};
  bad[2].handovers[0] = {forward(0), forward(3), 1};
  bad[3].handovers[0].bytes = -1;
  bad[4].gradient_bytes = {1};
  bad[5].replication.replicas = 0;
  for (const plan::Chain& chain : bad)
    EXPECT_NE(errorOf([&] { plan::predict(chain, {}); }).find("E0404"), std::string::npos);
}

TEST(Machines, ShowTheTimesOfTheirLinks) {
  Machine machine;
  EXPECT_EQ(linksText(machine), "");
  machine.links = {{.name = "near", .latency_ns = 3'210, .bytes_per_s = 12'900'000'000},
                   {.name = "far", .latency_ns = 30'000, .bytes_per_s = 1'000'000}};
  EXPECT_EQ(linksText(machine), "near 3.210 us and 12.900 GB/s, far 30.000 us and 0.001 GB/s");
}

TEST(Machines, AreReadAsTheyAreWritten) {
  Machine machine = hostsOfFour(/*is_shared=*/true);
  machine.name = "two \"hosts\"";
  machine.space_devices = 2;
  machine.device_bytes = 7;
  EXPECT_EQ(parseMachine(machineText(machine)), machine);
  EXPECT_EQ(machineText(parseMachine(machineText(machine))), machineText(machine));
}

}  // namespace
}  // namespace abele::schedule
