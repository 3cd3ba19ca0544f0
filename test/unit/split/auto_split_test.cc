#include "split/auto_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "../../support/random_graph.h"
#include "base/error.h"
#include "passes/pass.h"
#include "plan/cost.h"

namespace abele::split {
namespace {

using Worth = std::tuple<int64_t, int64_t, int64_t>;
Worth worthOf(const Split& split) { return {split.bytes_over, split.prediction.run.step_ns, split.crossing_bytes}; }

// Every way to cut the chain, through `visit(cuts)`.
template <class Fn>
void forAllCuts(size_t pieces, size_t cuts, Fn&& visit) {
  std::vector<size_t> chosen;
  auto choose = [&](auto&& self, size_t first) -> void {
    if (chosen.size() == cuts) return visit(chosen);
    for (size_t i = first; i < pieces; ++i) {
      chosen.push_back(i);
      self(self, i + 1);
      chosen.pop_back();
    }
  };
  choose(choose, 1);
}

SplitChain randomChain(std::mt19937& random, size_t pieces, bool training = true) {
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  SplitChain chain;
  chain.training = training;
  for (size_t i = 0; i < pieces; ++i) {
    Piece piece;
    piece.first = static_cast<ir::NodeId>(i);
    piece.forward_ns = 1 + below(100) * (below(4) == 0 ? 10 : 1);
    piece.backward_ns = training ? piece.forward_ns + below(200) : 0;
    piece.update_ns = training ? below(50) : 0;
    piece.persistent_bytes = below(1000);
    piece.kept_bytes = training ? below(300) : 0;
    piece.crossing_bytes = i == 0 ? 0 : below(1000);
    chain.pieces.push_back(piece);
  }
  return chain;
}

TEST(AutoSplit, FindsTheBestOfAllCuts) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const size_t pieces = 1 + random() % 12;
    const bool training = random() % 4 != 0;
    const SplitChain chain = randomChain(random, pieces, training);
    SplitOptions options;
    options.devices = static_cast<int>(1 + random() % std::min<size_t>(4, pieces));
    const schedule::ScheduleKind kinds[] = {schedule::ScheduleKind::k1F1B, schedule::ScheduleKind::kGPipe,
                                            schedule::ScheduleKind::kSharded};
    options.schedule = training ? kinds[random() % 3] : schedule::ScheduleKind::kForward;
    (training ? options.accumulation : options.device_iterations) = 1 + static_cast<int64_t>(random() % 8);
    options.hop_ns = static_cast<int64_t>(random() % 50);
    options.device_bytes = random() % 2 ? static_cast<int64_t>(1000 + random() % 4000) : 0;
    Worth least{INT64_MAX, 0, 0};
    forAllCuts(pieces, static_cast<size_t>(options.devices) - 1, [&](const std::vector<size_t>& cuts) {
      least = std::min(least, worthOf(splitAt(chain, options, cuts)));
    });
    EXPECT_EQ(worthOf(autoSplit(chain, options).front()), least) << "round " << round;
  }
}

TEST(AutoSplit, ComesCloseWhereThereAreTooManyCutsToTryAll) {
  std::mt19937 random(2);
  for (int round = 0; round < 6; ++round) {
    const SplitChain chain = randomChain(random, 44);  // 12341 ways
    const SplitOptions options{.devices = 4, .accumulation = 6};
    Worth least{INT64_MAX, 0, 0};
    forAllCuts(chain.pieces.size(), 3, [&](const std::vector<size_t>& cuts) {
      least = std::min(least, worthOf(splitAt(chain, options, cuts)));
    });
    const int64_t found = autoSplit(chain, options).front().prediction.run.step_ns;
    EXPECT_LE(static_cast<double>(found), 1.01 * static_cast<double>(std::get<1>(least))) << "round " << round;
  }
}

TEST(AutoSplit, ListsTheNextBest) {
  std::mt19937 random(3);
  const SplitChain chain = randomChain(random, 10);
  const std::vector<Split> splits = autoSplit(chain, {.devices = 3, .accumulation = 4}, /*alternatives=*/3);
  ASSERT_EQ(splits.size(), 4U);
  for (size_t i = 1; i < splits.size(); ++i) {
    EXPECT_LE(worthOf(splits[i - 1]), worthOf(splits[i]));
    EXPECT_NE(splits[i - 1].cuts, splits[i].cuts);
  }
}

TEST(AutoSplit, TakesTheFastestSchedule) {
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    SplitChain chain = randomChain(random, 9);
    // Half of each backward may run late wherever the cuts are.
    const size_t n = chain.pieces.size();
    chain.late_ns.assign(n + 1, std::vector<int64_t>(n + 1, 0));
    for (auto& row : chain.late_ns)
      for (size_t e = 1; e <= n; ++e) row[e] = row[e - 1] + chain.pieces[e - 1].backward_ns / 2;
    SplitOptions options{.devices = 3, .accumulation = 6};
    options.any_schedule = true;
    const Split best = autoSplit(chain, options).front();
    options.any_schedule = false;
    for (schedule::ScheduleKind schedule : trainingSchedules()) {
      options.schedule = schedule;
      EXPECT_LE(worthOf(best), worthOf(autoSplit(chain, options).front())) << schedule::scheduleName(schedule);
    }
    EXPECT_NE(best.schedule, schedule::ScheduleKind::kGPipe);  // never faster than 1F1B, which comes first
  }
}

TEST(AutoSplit, DealsTwoStagesADeviceWhenInterleaved) {
  std::mt19937 random(5);
  const SplitChain chain = randomChain(random, 12);
  const Split split =
      autoSplit(chain, {.schedule = schedule::ScheduleKind::kInterleaved, .devices = 3, .accumulation = 6}).front();
  EXPECT_EQ(split.chain.device_of, (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(AutoSplit, RefusesMoreDevicesThanPieces) {
  std::mt19937 random(6);
  const SplitChain chain = randomChain(random, 3);
  try {
    autoSplit(chain, {.devices = 4});
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ErrorCode::E0406);
  }
}

TEST(AutoSplit, ManyPiecesAndDevicesTakeNoTime) {
  std::mt19937 random(7);
  const SplitChain chain = randomChain(random, 500);
  const Split split = autoSplit(chain, {.devices = 64, .accumulation = 256}).front();
  ASSERT_EQ(split.cuts.size(), 63U);
  int64_t slowest = 0, all = 0;
  for (const schedule::StageCost& c : split.chain.costs.stages)
    slowest = std::max(slowest, c.forward_ns + c.backward_ns);
  for (const Piece& piece : chain.pieces) all += piece.forward_ns + piece.backward_ns;
  EXPECT_LT(slowest, 3 * all / 64);
}

// --- chains of graphs
// -------------------------------------------------------------------------------------------------

// Assigns backward nodes to forward nodes at random, because any assignment must work.
ir::Graph randomProgram(uint32_t seed) {
  ir::Graph graph = test::RandomGraph(seed).make();
  std::mt19937 random(seed);
  const auto last = static_cast<uint32_t>(graph.nodes.size());
  for (ir::Node& node : graph.nodes)
    if (node.direction == ir::Direction::kBackward && random() % 5 != 0)
      node.forward = static_cast<ir::NodeId>(random() % last);
  return graph;
}

void lower(ir::Graph& graph, passes::StageRules rules) {
  passes::PassContext context{.stages = std::move(rules)};
  context.stages.auto_stage = passes::AutoStage::kAutoSplit;
  context.optimizer.kind = passes::OptimizerRules::Kind::kAdam;
  context.optimizer.groups = {{}};
  for (const ir::External& external : graph.externals)
    if (external.trainable) context.optimizer.group_of[external.name] = 0;
  passes::runPipeline(graph, context);
}

// Copies of values that forward writes depend on the cuts. The chain keeps such buffers in one stage, and knows only
// those that backward reads.
bool hasCopies(const ir::Graph& lowered) {
  return std::any_of(lowered.nodes.begin(), lowered.nodes.end(),
                     [](const ir::Node& node) { return node.op == "aten::clone"; });
}

bool isPlannable(const ir::Graph& lowered) {
  try {
    plan::makePlan(lowered, {.accumulation = 2});
    return true;
  } catch (const UserError&) {
    return false;
  }
}

TEST(SplitChain, SaysWhatTheStagesOfAnyCutsWillCost) {
  int several = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    ir::Graph whole = randomProgram(seed);
    lower(whole, {});
    if (hasCopies(whole) || !isPlannable(whole)) continue;
    const SplitChain chain = splitChain(whole, 3);
    for (int devices = 1; devices <= static_cast<int>(std::min<size_t>(4, chain.pieces.size())); ++devices) {
      const Split split = autoSplit(chain, {.devices = devices, .accumulation = 2}).front();
      ir::Graph staged = randomProgram(seed);
      lower(staged, {.cuts = split.node_ids, .devices = devices});
      ASSERT_EQ(staged.stages.size(), static_cast<size_t>(devices)) << "seed " << seed;
      const plan::Plan plan = plan::makePlan(staged, {.accumulation = 2});
      passes::PassContext context;
      passes::splitWeightGradient(staged, context);
      std::vector<schedule::StageCost> costs = plan::estimateCosts(staged);
      several += devices > 1;
      for (size_t s = 0; s < costs.size(); ++s) {
        // The chain adds the time to read the values that are handed over.
        const size_t begin = s > 0 ? split.cuts[s - 1] : 0;
        costs[s].forward_ns += chain.pieces[begin].crossing_bytes / 10;
        if (s < split.cuts.size()) costs[s].backward_ns += chain.pieces[split.cuts[s]].crossing_bytes / 10;
        EXPECT_EQ(split.chain.costs.stages[s], costs[s])
            << "seed " << seed << ", " << devices << " devices, stage " << s;
      }
      EXPECT_EQ(plan.device_of.size(), static_cast<size_t>(devices));
    }
  }
  EXPECT_GT(several, 300);
}

TEST(SplitChain, KeepsAWrittenBufferInOneStage) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    ir::Graph whole = randomProgram(seed);
    lower(whole, {});
    if (!isPlannable(whole)) continue;
    const int most = static_cast<int>(splitChain(whole, 1).pieces.size());
    const SplitChain chain = splitChain(whole, most);
    std::vector<size_t> everywhere(chain.pieces.size() - 1);
    std::iota(everywhere.begin(), everywhere.end(), 1);
    const Split split =
        splitAt(chain, {.devices = static_cast<int>(chain.pieces.size()), .accumulation = 2}, everywhere);
    ir::Graph staged = randomProgram(seed);
    lower(staged, {.cuts = split.node_ids});
    EXPECT_NO_THROW(plan::makePlan(staged, {.accumulation = 2})) << "seed " << seed;
  }
}

}  // namespace
}  // namespace abele::split
