// make_executables FOLDER COUNT: executables of random programs, as this version writes them: what mutations_test
// starts from. make_executables --fields FOLDER COUNT: the fields of small ones alone, which the fuzzers take.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>

#include "../support/random_graph.h"
#include "../unit/runtime/random_staged_graph.h"
#include "base/error.h"
#include "base/whole_file.h"
#include "exe/build/build.h"
#include "passes/pass.h"
#include "plan/plan.h"
#include "sealed.h"

namespace abele::test {
namespace {

exe::Replication replicasOf(int64_t count) {
  exe::Replication replication{.replicas = count};
  for (int32_t r = 0; r < count; ++r) replication.input_part.push_back(r);
  return replication;
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

/// What a compilation makes: blocks, an optimizer, two or more stages.
exe::Executable compiled(uint32_t seed, std::mt19937_64& random) {
  ir::Graph graph = RandomGraph(seed).make();
  passes::PassContext context{.optimizer = optimizerFor(graph, random)};
  context.stages.auto_stage = passes::AutoStage::kAutoIncrement;
  context.stages.ordered = true;
  passes::runPipeline(graph, context);
  plan::PlanOptions options;
  static constexpr schedule::ScheduleKind kKinds[] = {schedule::ScheduleKind::k1F1B, schedule::ScheduleKind::kGPipe,
                                                      schedule::ScheduleKind::kZeroBubble};
  options.schedule = kKinds[random() % 3];
  options.device_iterations = 1 + static_cast<int64_t>(random() % 2);
  options.accumulation = 1 + static_cast<int64_t>(random() % 4);
  if (schedule::splitsBackward(options.schedule))
    passes::runPipeline(graph, context, {.passes = {"split-weight-gradient"}});
  if (random() % 3 == 0) {  // devices that share no memory
    context.stages.spaces = {0};
    for (ir::Stage& stage : graph.stages) stage.space = context.stages.spaceOf(stage.device);
    passes::insertTransfers(graph, context);
  }
  return exe::build(graph, plan::makePlan(graph, options), replicasOf(1 + static_cast<int64_t>(random() % 2)));
}

/// Views, writes in place, memory off the chip.
exe::Executable staged(uint64_t seed, std::mt19937_64& random) {
  const ir::Graph graph = RandomStagedGraph(seed, /*training=*/true).make();
  plan::PlanOptions options{.schedule = schedule::ScheduleKind::k1F1B, .device_iterations = 2, .accumulation = 3};
  options.locations.weights = options.locations.activations = {random() % 2 == 0, 4};
  return exe::build(graph, plan::makePlan(graph, options), replicasOf(1));
}

constexpr size_t kMostBytes = 4000;  // of a fuzzer's seed

void write(const std::string& folder, int number, const std::string& file, bool fields_only) {
  if (fields_only)
    writeWholeFile(cat(folder, "/seed", number), fieldsOf(file));
  else
    writeWholeFile(cat(folder, "/", number, ".abx"), file);
}

int make(const std::string& folder, int count, bool fields_only) {
  std::filesystem::create_directories(folder);
  int made = 0;
  for (uint64_t seed = 0; made < count; ++seed) {
    std::mt19937_64 random(seed);
    try {
      const exe::Executable executable =
          seed % 2 ? compiled(static_cast<uint32_t>(seed), random) : staged(seed, random);
      const std::string file = exe::encode(executable);
      if (!fields_only || file.size() <= kMostBytes) write(folder, made++, file, fields_only);
    } catch (const UserError& error) {
      if (error.code() != ErrorCode::E0403) throw;  // this program cannot be run in this schedule
    }
  }
  return 0;
}

}  // namespace
}  // namespace abele::test

int main(int argc, char** argv) {
  const bool fields_only = argc == 4 && std::string_view(argv[1]) == "--fields";
  if (argc != 3 && !fields_only) return std::fputs("make_executables [--fields] FOLDER COUNT\n", stderr), 2;
  return abele::test::make(argv[argc - 2], std::atoi(argv[argc - 1]), fields_only);
}
