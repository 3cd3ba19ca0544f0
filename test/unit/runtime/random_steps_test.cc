// Any graph, any cut, any schedule, any number of workers: no deadlock, no race, no byte beyond the plan, and the same
// contents as doing one thing after the other. ABELE_PROPERTY=first:count runs other blocks of seeds than the first
// ten; a block is 160 graphs with their plans, so that 0:625 are 100,000.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "../../support/random_graph.h"
#include "base/error.h"
#include "device/null/null_backend.h"
#include "exe/build/build.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "move_check.h"
#include "passes/pass.h"
#include "plan/memory_report.h"
#include "plan/plan.h"
#include "race_check.h"
#include "random_staged_graph.h"
#include "reference.h"
#include "runtime/runtime.h"
#include "schedule/schedule.h"
#include "space_check.h"

namespace abele::test {
namespace {

std::vector<std::vector<Bytes>> makeArguments(const ir::Graph& graph, int64_t micro_batches, int step) {
  std::vector<std::vector<Bytes>> arguments;
  for (const ir::Input& in : graph.inputs) {
    if (in.kind != ir::InputKind::kArgument) continue;
    auto& frames = arguments.emplace_back();
    for (int64_t k = 0; k < micro_batches; ++k)
      frames.push_back(
          Symbol(cat("x", in.external)).contents(step * 1000 + k, graph.values[in.value].type.extentBytes()));
  }
  return arguments;
}

exe::Replication replicasOf(int64_t count) {
  exe::Replication replication{.replicas = count};
  for (int32_t r = 0; r < count; ++r) replication.input_part.push_back(r);
  return replication;
}

void checkExternals(const exe::Executable& executable, device::NullBackend& backend, Reference& reference, int step) {
  for (size_t e = 0; e < executable.externals.size(); ++e)
    for (int32_t r = 0; r < executable.replicas; ++r) {
      const exe::External& external = executable.externals[e];
      // The sums of replica 0 hold those of all replicas after an update, or not if nothing reads them.
      if (external.kind == exe::ExternalKind::kAccumulator && r == 0 && executable.replicas > 1) continue;
      if (external.slot < 0) continue;
      ASSERT_EQ(backend.external(e, r), reference.external(e, r))
          << external.name << " of replica " << r << " after step " << step << "\n"
          << exe::print(executable);
    }
}

// What each worker of the executable has at once is what the plan says, to the byte.
void checkBytes(const exe::Executable& executable, const ir::Graph& graph, const plan::Plan& plan) {
  const plan::MemoryReport report = plan::reportMemory(graph, plan);
  for (size_t w = 0; w < plan.device_of.size(); ++w)
    ASSERT_EQ(report.devices[w].peak_bytes, exe::peakBytes(executable, static_cast<int32_t>(w)))
        << plan::memoryText(report) << plan::print(plan);
  const std::vector<int64_t> bytes = plan::peakDeviceBytes(plan);
  for (size_t w = 0; w < bytes.size(); ++w)
    ASSERT_EQ(exe::peakBytes(executable, static_cast<int32_t>(w)), bytes[w]) << "worker " << w << "\n"
                                                                             << plan::print(plan);
}

// As devices that share no memory, or only some of them, as last pass. Returns: the devices of a process; 0: one has
// all.
int64_t separate(ir::Graph& graph, std::mt19937_64& random) {
  static const std::vector<int> kSpaces[] = {{0}, {0, 0}, {0, 1}, {0, 1, 1}};
  passes::PassContext context;
  context.stages.spaces = kSpaces[random() % 4];
  for (ir::Stage& stage : graph.stages) stage.space = context.stages.spaceOf(stage.device);
  passes::insertTransfers(graph, context);
  return random() % 2 ? static_cast<int64_t>(context.stages.spaces.size()) : 0;
}

// Holds up actions, as devices and links of other speeds would.
void delay(device::NullBackend& backend, uint64_t seed) {
  backend.setHook([seed](const runtime::ActionContext& action) {
    std::mt19937_64 random(seed ^ (static_cast<uint64_t>(action.worker) << 40) ^
                           (static_cast<uint64_t>(action.segment) << 20) ^ static_cast<uint64_t>(action.micro_batch));
    std::atomic<uint64_t> left = random() % 4 == 0 ? random() % 5000 : 0;  // atomic: no compiler leaves the loop out
    while (left > 0) --left;
  });
}

// original: the same program before passes changed it.
void checkSteps(const ir::Graph& graph, const plan::PlanOptions& options, const ir::Graph& original,
                const exe::Replication& replication = replicasOf(1)) {
  const int32_t replicas = static_cast<int32_t>(replication.replicas);
  const plan::Plan plan = plan::makePlan(graph, options);
  ASSERT_EQ(schedule::verifySchedule(plan.schedule, static_cast<int>(graph.stages.size()), options.accumulation,
                                     graph.training),
            std::vector<std::string>{});
  const exe::Executable executable = exe::build(graph, plan, replication);
  if (replicas == 1) checkBytes(executable, graph, plan);
  ASSERT_EQ(exe::verify(executable), std::vector<std::string>{}) << exe::print(executable);
  ASSERT_EQ(findRaces(executable), std::vector<std::string>{}) << exe::print(executable);
  ASSERT_EQ(findMoveFaults(executable), std::vector<std::string>{}) << exe::print(executable);
  ASSERT_EQ(findForeignMemory(executable), std::vector<std::string>{}) << exe::print(executable);
  ASSERT_EQ(exe::parse(exe::print(executable)), executable);
  ASSERT_EQ(exe::decode(exe::encode(executable)), executable);
  ASSERT_EQ(plan::parse(plan::print(plan)), plan);
  ASSERT_EQ(plan::verify(plan, graph), std::vector<std::string>{});
  device::NullBackend backend(executable);
  backend.enableContents();
  backend.moveOffChipMemory(true);
  delay(backend, executable.slots.size());
  runtime::Runtime runtime(executable, backend);
  Reference reference(original, executable.device_iterations, executable.accumulation, replicas);
  for (int step = 0; step < 2; ++step) {
    std::vector<std::vector<Bytes>> arguments;
    for (int32_t r = 0; r < replicas; ++r)
      for (auto& frames : makeArguments(graph, executable.micro_batches, step + 100 * r))
        arguments.push_back(std::move(frames));
    for (size_t a = 0; a < arguments.size(); ++a)
      for (size_t k = 0; k < arguments[a].size(); ++k) backend.setInput(a, k, arguments[a][k]);
    runtime.run();
    reference.step(arguments);
    for (size_t t = 0; t < reference.outputs.size(); ++t)
      for (size_t k = 0; k < reference.outputs[t].size(); ++k)
        ASSERT_EQ(backend.output(t, k), reference.outputs[t][k]) << "result " << t << " of micro-batch " << k << "\n"
                                                                 << exe::print(executable);
    checkExternals(executable, backend, reference, step);
    if (testing::Test::HasFatalFailure()) return;
  }
}

plan::Locations randomLocations(std::mt19937_64& random) {
  plan::Locations locations;
  for (plan::TensorLocation* l :
       {&locations.weights, &locations.optimizer_state, &locations.accumulators, &locations.activations})
    *l = {random() % 2 == 0, static_cast<int64_t>(random() % 8)};
  locations.fetch_ahead = random() % 2 == 0;
  return locations;
}

// What belongs to which parameter, as lowering has it.
void setOwners(ir::Graph& graph) {
  for (ir::External& external : graph.externals)
    for (size_t p = 0; p < graph.externals.size(); ++p)
      for (const char* what : {"grad", "state"})
        if (graph.externals[p].kind == ir::InputKind::kParameter &&
            external.name == what + graph.externals[p].name.substr(1))
          external.owner = static_cast<int32_t>(p);
}

exe::ShardingRules someSharding(std::mt19937_64& random) {
  exe::ShardingRules rules{.weights = random() % 2 == 0};
  rules.states = !rules.weights || random() % 2 == 0;
  rules.min_weight_elements = static_cast<int64_t>(random() % 3) * 8;
  rules.min_state_elements = static_cast<int64_t>(random() % 3) * 8;
  return rules;
}

class RandomSteps : public testing::TestWithParam<int> {};

TEST_P(RandomSteps, TrainingEqualsTheReference) {
  for (uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed + 7777);
    plan::PlanOptions options;
    static constexpr schedule::ScheduleKind kKinds[] = {
        schedule::ScheduleKind::kSharded,    schedule::ScheduleKind::k1F1B,
        schedule::ScheduleKind::kGPipe,      schedule::ScheduleKind::kInterleaved,
        schedule::ScheduleKind::kZeroBubble, schedule::ScheduleKind::kZeroBubble2};
    options.schedule = kKinds[random() % 6];
    ir::Graph graph =
        RandomStagedGraph(seed, /*training=*/true, options.schedule == schedule::ScheduleKind::kSharded).make();
    options.device_iterations = 1 + random() % 3;
    options.accumulation = 1 + random() % 7;
    const ir::Graph original = graph;
    if (random() % 2) {
      passes::PassContext context;
      context.recompute = {.enabled = true, .last_stage = random() % 2 == 0};
      passes::recompute(graph, context);
      // Random graphs have values that nothing makes.
      ASSERT_EQ(ir::verify(graph, ir::Form::kStaged), ir::verify(original, ir::Form::kStaged)) << ir::print(graph);
    }
    if (schedule::splitsBackward(options.schedule) || random() % 4 == 0) {
      passes::PassContext context;
      passes::splitWeightGradient(graph, context);
    }
    if (random() % 2)
      for (size_t s = 0; s < graph.stages.size(); ++s)
        options.costs.push_back({static_cast<int64_t>(random() % 9), static_cast<int64_t>(random() % 9),
                                 static_cast<int64_t>(random() % 9), 0});
    if (random() % 2) options.locations = randomLocations(random);
    checkSteps(graph, options, original);
    if (HasFatalFailure()) return;
    plan::PlanOptions in_turn = options;
    in_turn.turns = 2 + static_cast<int64_t>(seed % 3);
    in_turn.locations = {};
    checkSteps(graph, in_turn, original);
    if (HasFatalFailure()) return;
    exe::Replication processes = replicasOf(1);
    processes.devices_per_process = separate(graph, random);
    checkSteps(graph, options, original, processes);
    if (HasFatalFailure()) return;
  }
}

TEST_P(RandomSteps, InferenceEqualsTheReference) {
  for (uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1u); ++seed) {
    SCOPED_TRACE(seed);
    const ir::Graph graph = RandomStagedGraph(seed, /*training=*/false).make();
    for (const int64_t turns : {int64_t{1}, 2 + static_cast<int64_t>(seed % 3)}) {
      checkSteps(graph,
                 {.schedule = schedule::ScheduleKind::kForward,
                  .device_iterations = 1 + static_cast<int64_t>(seed % 7),
                  .turns = turns},
                 graph);
      if (HasFatalFailure()) return;
    }
    ir::Graph separated = graph;
    std::mt19937_64 random(seed);
    exe::Replication processes = replicasOf(1);
    processes.devices_per_process = separate(separated, random);
    checkSteps(separated,
               {.schedule = schedule::ScheduleKind::kForward, .device_iterations = 1 + static_cast<int64_t>(seed % 7)},
               graph, processes);
    if (HasFatalFailure()) return;
  }
}

constexpr schedule::ScheduleKind kTrainingKinds[] = {schedule::ScheduleKind::kSharded, schedule::ScheduleKind::k1F1B,
                                                     schedule::ScheduleKind::kGPipe,
                                                     schedule::ScheduleKind::kZeroBubble};

TEST_P(RandomSteps, ReplicasEqualTheReference) {
  for (uint64_t seed = 20 * GetParam(); seed < 20 * (GetParam() + 1u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed + 1234);
    plan::PlanOptions options;
    options.schedule = kTrainingKinds[random() % 4];
    const bool training = random() % 4 != 0;
    if (!training) options.schedule = schedule::ScheduleKind::kForward;
    options.device_iterations = 1 + random() % 3;
    options.accumulation = training ? 1 + random() % 4 : 1;
    const bool sequential = options.schedule == schedule::ScheduleKind::kSharded;
    ir::Graph graph = RandomStagedGraph(seed + 5000, training, sequential).make();
    if (schedule::splitsBackward(options.schedule)) {
      passes::PassContext context;
      passes::splitWeightGradient(graph, context);
    }
    if (random() % 2) options.locations = randomLocations(random);
    setOwners(graph);
    exe::Replication replication = replicasOf(2 + static_cast<int64_t>(random() % 3));
    if (random() % 2) replication.sharding = someSharding(random);
    checkSteps(graph, options, graph, replication);
    if (HasFatalFailure()) return;
    graph = RandomStagedGraph(seed + 5000, training, sequential, /*updates_at_sums=*/true).make();
    if (schedule::splitsBackward(options.schedule)) {
      passes::PassContext context;
      passes::splitWeightGradient(graph, context);
    }
    setOwners(graph);
    const ir::Graph original = graph;
    const int64_t devices = separate(graph, random);
    if (random() % 2) replication.devices_per_process = devices;
    checkSteps(graph, options, original, replication);
    if (HasFatalFailure()) return;
  }
}

// Some parameters have a value for each group of replicas: more updates run, still one after the other where they must.
TEST_P(RandomSteps, GroupsOfParametersDoNotRace) {
  for (uint64_t seed = 20 * GetParam(); seed < 20 * (GetParam() + 1u); ++seed) {
    SCOPED_TRACE(seed);
    ir::Graph graph = RandomStagedGraph(seed + 9000, /*training=*/true).make();
    setOwners(graph);
    exe::Replication replication = replicasOf(4);
    replication.parameters = {{"w0", {0, 1, 2, 3}}, {"w1", {0, 0, 2, 2}}, {"w2", {0, 1, 0, 1}}};
    std::mt19937_64 random(seed);
    if (random() % 2) replication.sharding = someSharding(random);
    const exe::Executable executable =
        exe::build(graph, plan::makePlan(graph, {.device_iterations = 2, .accumulation = 3}), replication);
    ASSERT_EQ(exe::verify(executable), std::vector<std::string>{}) << exe::print(executable);
    ASSERT_EQ(findRaces(executable), std::vector<std::string>{}) << exe::print(executable);
    ASSERT_EQ(exe::decode(exe::encode(executable)), executable);
  }
}

passes::OptimizerRules optimizerFor(const ir::Graph& graph, std::mt19937_64& random) {
  using Kind = passes::OptimizerRules::Kind;
  static constexpr Kind kKinds[] = {Kind::kSgd, Kind::kAdam, Kind::kAdamW, Kind::kRmsprop, Kind::kLamb};
  passes::OptimizerRules rules{.kind = kKinds[random() % 5]};
  rules.groups = {{.momentum = random() % 2 == 0, .centered = random() % 2 == 0}};
  if (random() % 2) rules.max_grad_norm = 1;
  for (const ir::External& external : graph.externals)
    if (external.trainable) rules.group_of[external.name] = 0;
  return rules;
}

// From what capture records to what runs: blocks cut it into stages, the optimizer is lowered, backward made again.
TEST_P(RandomSteps, CapturedGraphsEqualTheReference) {
  int run = 0;
  for (uint64_t seed = 40 * GetParam(); seed < 40 * (GetParam() + 1u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed + 4321);
    ir::Graph graph = RandomGraph(static_cast<uint32_t>(seed)).make();
    passes::PassContext context{.optimizer = optimizerFor(graph, random)};
    const bool sharded = random() % 6 == 0;
    context.stages.auto_stage = random() % 2 ? passes::AutoStage::kAutoIncrement : passes::AutoStage::kSameAsIpu;
    context.stages.ordered = !sharded;
    static constexpr schedule::ScheduleKind kKinds[] = {
        schedule::ScheduleKind::k1F1B, schedule::ScheduleKind::kGPipe, schedule::ScheduleKind::kInterleaved,
        schedule::ScheduleKind::kZeroBubble, schedule::ScheduleKind::kZeroBubble2};
    plan::PlanOptions options;
    options.schedule = sharded ? schedule::ScheduleKind::kSharded : kKinds[random() % 5];
    context.stages.group = 1 + static_cast<int>(random() % 3);
    try {
      passes::runPipeline(graph, context);
    } catch (const UserError& error) {
      // A buffer that two stages write has no place in a pipeline.
      ASSERT_EQ(error.code(), ErrorCode::E0303) << error.what();
      ASSERT_FALSE(sharded) << error.what();
      continue;
    }
    const ir::Graph original = graph;
    options.device_iterations = 1 + random() % 2;
    options.accumulation = 1 + random() % 5;
    context.recompute = {.enabled = context.stages.group == 1 && random() % 2 == 0, .last_stage = random() % 2 == 0};
    exe::Replication replication = replicasOf(random() % 2 ? 1 : 2 + static_cast<int64_t>(random() % 2));
    if (random() % 2) replication.sharding = someSharding(random);
    std::vector<std::string> late = {"recompute"};
    if (schedule::splitsBackward(options.schedule)) late.push_back("split-weight-gradient");
    passes::runPipeline(graph, context, {.passes = late});
    if (random() % 2) {
      const int64_t devices = separate(graph, random);
      if (random() % 2 || replication.replicas == 1) replication.devices_per_process = devices;
    }
    try {
      checkSteps(graph, options, original, replication);
    } catch (const UserError& error) {
      // A buffer that a later stage reads while an earlier one writes it for the next micro-batch.
      ASSERT_EQ(error.code(), ErrorCode::E0403) << error.what();
      continue;
    }
    if (HasFatalFailure()) return;
    ++run;
  }
  EXPECT_GT(run, 20);
}

testing::internal::ParamGenerator<int> blocksOfSeeds() {
  int first = 0, count = 10;
  if (const char* asked = std::getenv("ABELE_PROPERTY")) std::sscanf(asked, "%d:%d", &first, &count);
  return testing::Range(first, first + count);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSteps, blocksOfSeeds());
// Blocks that once found a fault: a stage wrote what a transfer had brought for another one, which still read it.
INSTANTIATE_TEST_SUITE_P(Found, RandomSteps, testing::Values(82, 104));

}  // namespace
}  // namespace abele::test
