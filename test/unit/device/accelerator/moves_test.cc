// Off-chip frames of random executables, moved as planned: every action finds the results of earlier actions on its
// device, for any order of workers.
#include "device/accelerator/moves.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "../../runtime/race_check.h"
#include "../../runtime/random_staged_graph.h"
#include "exe/build/build.h"
#include "passes/pass.h"
#include "plan/plan.h"
#include "schedule/schedule.h"

namespace abele::device::testing {
namespace {

/// Bytes as the numbers of the actions that wrote them.
class MovedMemory {
 public:
  MovedMemory(const exe::Executable& executable, uint64_t seed) : exe_(executable), random_(seed) {
    for (const exe::WorkerProgram& worker : exe_.workers) works_at_home_.push_back(worker.isLink());
    moves_ = planMoves(exe_, works_at_home_);
    for (const WorkerMoves& moves : moves_)
      windows_.emplace_back(static_cast<std::size_t>(moves.window_bytes), kNothing);
    heads_.resize(exe_.workers.size());
    done_.resize(exe_.segments.size());
  }

  /// Two steps, workers in some order. Returns the bytes that an action found wrong.
  int64_t run() {
    for (step_ = 0; step_ < 2; ++step_) {
      std::ranges::fill(heads_, 0);
      std::ranges::fill(done_, 0);
      for (std::vector<std::size_t> ready = findReady(); !ready.empty(); ready = findReady())
        runNext(ready[random_() % ready.size()]);
    }
    return num_wrong_;
  }

 private:
  using Bytes = std::vector<int64_t>;
  using Frame = std::pair<int32_t, int32_t>;
  static constexpr int64_t kNothing = -1;

  std::vector<std::size_t> findReady() const {
    std::vector<std::size_t> ready;
    for (std::size_t w = 0; w < heads_.size(); ++w)
      if (heads_[w] < exe_.workers[w].actions.size() &&
          std::ranges::all_of(exe_.workers[w].actions[heads_[w]].waits,
                              [&](const exe::Wait& wait) { return done_[wait.segment] >= wait.completions; }))
        ready.push_back(w);
    return ready;
  }

  Bytes& in(std::map<Frame, Bytes>& memory, const Frame& frame) {
    Bytes& bytes = memory[frame];
    bytes.resize(static_cast<std::size_t>(exe_.groups[frame.first].frame_bytes), kNothing);
    return bytes;
  }

  void copy(std::size_t worker, const std::vector<Move>& moves, bool to_device) {
    for (const Move& move : moves)
      for (const ByteRange& range : move.ranges)
        for (int64_t i = range.begin; i < range.end; ++i) {
          int64_t& here = windows_[worker].at(static_cast<std::size_t>(move.offset_bytes + i));
          int64_t& home = in(home_, {move.group, move.frame}).at(static_cast<std::size_t>(i));
          to_device ? here = home : home = here;
        }
  }

  void runNext(std::size_t worker) {
    const std::size_t index = heads_[worker]++;
    const exe::Action& action = exe_.workers[worker].actions[index];
    if (!works_at_home_[worker]) {
      const ActionMoves& moves = moves_[worker].actions[index];
      for (const Move& move : moves.placed) placed_[{worker, {move.group, move.frame}}] = move.offset_bytes;
      copy(worker, moves.fetches, /*to_device=*/true);
      copy(worker, moves.next_fetches, /*to_device=*/true);
    }
    touchAll(worker, action);
    if (!works_at_home_[worker]) copy(worker, moves_[worker].actions[index].stores, /*to_device=*/false);
    ++done_[action.segment];
  }

  void touchAll(std::size_t worker, const exe::Action& action) {
    ++number_;
    const auto each = [&](int64_t slot, bool writes) {
      if (slot >= 0 && exe_.groups[exe_.slots[slot].group].off_chip) touch(worker, action, exe_.slots[slot], writes);
    };
    for (const bool writes : {false, true})
      for (const exe::Instruction& instruction : exe_.segments[action.segment].instructions) {
        for (const Arg& arg : instruction.args) {
          if (arg.kind == Arg::Kind::kId && !writes) each(arg.i, false);
          if ((arg.kind == Arg::Kind::kIdList || arg.kind == Arg::Kind::kOptionalIdList) && !writes)
            for (const int64_t id : arg.ints) each(id, false);
        }
        if (!writes) continue;
        for (const int32_t id : instruction.writes) each(id, true);
        for (const auto& result : instruction.results)
          for (const int32_t id : result) each(id, true);
      }
  }

  void touch(std::size_t worker, const exe::Action& action, const exe::Slot& slot, bool writes) {
    const exe::Group& group = exe_.groups[slot.group];
    const Frame frame{slot.group, action.micro_batch % group.frames};
    Bytes& expected = in(expected_, frame);
    Bytes& home = in(home_, frame);
    const int64_t at = works_at_home_[worker] ? 0 : placed_.at({worker, frame});
    for (int64_t i = slot.offset_bytes; i < slot.offset_bytes + slot.type.extentBytes(); ++i) {
      const auto byte = static_cast<std::size_t>(i);
      int64_t& here = works_at_home_[worker] ? home[byte] : windows_[worker].at(static_cast<std::size_t>(at + i));
      int64_t& last = expected[byte];
      // A stage's values of another micro-batch are never read.
      const bool is_alive =
          group.kind != exe::GroupKind::kStash || micro_batch_of_[last] == std::pair(step_, action.micro_batch);
      if (writes)
        here = last = number_;
      else if (is_alive && here != last)
        ++num_wrong_;
    }
    micro_batch_of_[number_] = {step_, action.micro_batch};
  }

  const exe::Executable& exe_;
  std::mt19937_64 random_;
  std::vector<char> works_at_home_;
  std::vector<WorkerMoves> moves_;
  std::vector<std::size_t> heads_;  // by worker
  std::vector<int64_t> done_;       // by segment
  std::vector<Bytes> windows_;      // by worker
  std::map<Frame, Bytes> home_, expected_;
  std::map<std::pair<std::size_t, Frame>, int64_t> placed_;
  std::map<int64_t, std::pair<int, int32_t>> micro_batch_of_{{kNothing, {-1, -1}}};  // and step, by action
  int step_ = 0;
  int64_t number_ = 0, num_wrong_ = 0;
};

// Sets the owners of parameters as lowering does.
void setOwners(ir::Graph& graph) {
  for (ir::External& external : graph.externals)
    for (std::size_t p = 0; p < graph.externals.size(); ++p)
      for (const char* what : {"grad", "state"})
        if (graph.externals[p].kind == ir::InputKind::kParameter &&
            external.name == what + graph.externals[p].name.substr(1))
          external.owner = static_cast<int32_t>(p);
}

exe::Executable someExecutable(uint64_t seed) {
  std::mt19937_64 random(seed + 99);
  static constexpr schedule::ScheduleKind kKinds[] = {schedule::ScheduleKind::kSharded, schedule::ScheduleKind::k1F1B,
                                                      schedule::ScheduleKind::kGPipe,
                                                      schedule::ScheduleKind::kInterleaved};
  plan::PlanOptions options{.schedule = kKinds[random() % 4]};
  const bool is_sequential = options.schedule == schedule::ScheduleKind::kSharded;
  ir::Graph graph = test::RandomStagedGraph(seed, /*training=*/true, is_sequential, /*updates_at_sums=*/true).make();
  options.device_iterations = 1 + static_cast<int64_t>(random() % 2);
  options.accumulation = 1 + static_cast<int64_t>(random() % 5);
  plan::Locations& locations = options.locations;
  for (plan::TensorLocation* location :
       {&locations.weights, &locations.optimizer_state, &locations.accumulators, &locations.activations})
    *location = {random() % 4 != 0, static_cast<int64_t>(random() % 8)};
  locations.fetch_ahead = random() % 4 != 0;
  setOwners(graph);
  if (random() % 2) {
    passes::PassContext context;
    context.stages.spaces = {0};
    for (ir::Stage& stage : graph.stages) stage.space = context.stages.spaceOf(stage.device);
    passes::insertTransfers(graph, context);
  }
  exe::Replication replication{.replicas = 1 + static_cast<int64_t>(random() % 3)};
  for (int32_t r = 0; r < replication.replicas; ++r) replication.input_part.push_back(r);
  return exe::build(graph, plan::makePlan(graph, options), replication);
}

TEST(Moves, EveryActionFindsWhatTheOnesBeforeItLeft) {
  int64_t num_moves = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const exe::Executable executable = someExecutable(seed);
    ASSERT_EQ(exe::verify(executable), std::vector<std::string>{});
    ASSERT_EQ(test::findRaces(executable), std::vector<std::string>{});
    ASSERT_EQ(MovedMemory(executable, seed).run(), 0);
    for (const WorkerMoves& moves : planMoves(executable, std::vector<char>(executable.workers.size(), false)))
      for (const ActionMoves& action : moves.actions)
        num_moves += static_cast<int64_t>(action.next_fetches.size() + action.fetches.size());
  }
  EXPECT_GT(num_moves, 1000);
}

// Each action changes its own frame. The fetch for the next action takes the place that was freed before this one. The
// store after this action does not delay it: both directions copy at once.
TEST(Moves, AFetchWaitsForTheStoresThatMakeItsPlaceAlone) {
  constexpr int32_t kCount = 6;
  exe::Executable executable;
  executable.micro_batches = executable.accumulation = 1;
  executable.fetch_ahead = true;
  executable.workers.resize(1);
  for (int32_t i = 0; i < kCount; ++i) {
    executable.groups.push_back(
        {.kind = exe::GroupKind::kPersistent, .worker = 0, .frame_bytes = 64, .name = "weight", .off_chip = true});
    executable.slots.push_back({i, 0, contiguousType(DType::kFloat32, {16}), {}});
    exe::Instruction instruction{.op = "aten::neg_", .args = {Arg::id(i)}};
    instruction.writes = {i};
    executable.segments.push_back({0, exe::Direction::kForward, "fwd", {instruction}});
    executable.workers[0].actions.push_back({i, 0, {}});
  }
  const WorkerMoves moves = planMoves(executable, {false})[0];
  EXPECT_EQ(moves.window_bytes, 2 * 64);
  for (int32_t i = 0; i < kCount; ++i) {
    const ActionMoves& action = moves.actions[static_cast<std::size_t>(i)];
    EXPECT_EQ(action.stores.size(), 1u);
    EXPECT_EQ(action.places_behind, i < 2 ? kNoStores : i - 2);
    ASSERT_EQ(action.next_fetches.size(), i + 1 < kCount ? 1u : 0u);
    for (const auto& fetch : action.next_fetches) EXPECT_EQ(fetch.behind, i - 1);
  }
}

TEST(Moves, AFetchWaitsForTheStoreOfWhatItReads) {
  exe::Executable executable;
  executable.micro_batches = executable.accumulation = 1;
  executable.fetch_ahead = true;
  executable.workers.resize(1);
  for (int32_t i = 0; i < 3; ++i) {
    executable.groups.push_back(
        {.kind = exe::GroupKind::kPersistent, .worker = 0, .frame_bytes = 64 << i, .name = "weight", .off_chip = true});
    executable.slots.push_back({i, 0, contiguousType(DType::kFloat32, {16 << i}), {}});
    exe::Instruction instruction{.op = "aten::neg_", .args = {Arg::id(i)}};
    if (i == 0) instruction.writes = {i};
    executable.segments.push_back({0, exe::Direction::kForward, "fwd", {instruction}});
  }
  for (const int32_t segment : {0, 1, 2, 0}) executable.workers[0].actions.push_back({segment, 0, {}});
  const WorkerMoves moves = planMoves(executable, {false})[0];
  ASSERT_EQ(moves.actions[0].stores.size(), 1u);
  ASSERT_EQ(moves.actions[2].next_fetches.size(), 1u);
  const Move &store = moves.actions[0].stores[0], &fetch = moves.actions[2].next_fetches[0];
  EXPECT_NE(store.offset_bytes, fetch.offset_bytes);
  EXPECT_EQ(fetch.behind, 0);
}

TEST(Moves, AWorkerHasNoMoreOnItsDeviceThanThePlanSays) {
  int64_t window_bytes = 0, planned_bytes = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const exe::Executable executable = someExecutable(seed);
    std::vector<char> works_at_home;
    for (const exe::WorkerProgram& worker : executable.workers) works_at_home.push_back(worker.isLink());
    const std::vector<WorkerMoves> moves = planMoves(executable, works_at_home);
    for (std::size_t w = 0; w < moves.size(); ++w) {
      window_bytes += moves[w].window_bytes;
      planned_bytes += works_at_home[w] ? 0 : exe::fetchedBytes(executable, static_cast<int32_t>(w));
    }
  }
  EXPECT_LE(window_bytes, planned_bytes + planned_bytes / 10);  // places have gaps, and frames start at 64 bytes
}

}  // namespace
}  // namespace abele::device::testing
