#include "passes/stage_rules.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/error.h"
#include "base/joined.h"
#include "base/log.h"

namespace abele::passes {
namespace {

std::string blockText(const ir::Block& block) {
  return cat("block \"", block.user_id, "\"", block.source.empty() ? "" : cat(" (", block.source, ")"));
}

int explicitStage(const StageRules& rules, const ir::Block& block) {
  std::string known;
  for (size_t i = 0; i < rules.stages.size(); ++i)
    for (const std::string& id : rules.stages[i].blocks) {
      if (id == block.user_id) return static_cast<int>(i);
      known += cat(known.empty() ? "\"" : ", \"", id, "\"");
    }
  throwUser(ErrorCode::E0305,
            {.what = cat("block id \"", block.user_id, "\" is in no stage of the execution strategy"),
             .at = blockText(block),
             .expected = known.empty() ? "no block: the list of stages is empty" : cat("one of ", known),
             .remedy = "add the id to a Stage of the strategy, or rename the block"});
}

// The default device for a stage of a phase: its position in the phase, among the phase's own devices.
int deviceInPhase(const StageRules& rules, int number) {
  const int phase = rules.stages[number].phase;
  int position = 0;
  while (position < number && rules.stages[number - position - 1].phase == phase) ++position;
  return rules.alternating ? 2 * position + phase % 2 : position;
}

void requireParity(const StageRules& rules, const ir::Block& block, const AskedStage& asked) {
  const int phase = rules.stages[asked.number].phase;
  const int device = asked.devices.front();
  ABELE_REQUIRE(!rules.alternating || device % 2 == phase % 2, E0402,
                {.what = cat("phase ", phase, " of a ParallelPhasedExecution is on device ", device),
                 .at = blockText(block),
                 .expected = cat("an ", phase % 2 == 0 ? "even" : "odd", " device"),
                 .remedy = cat(inLanguage("Phase "), phase, inLanguage(": Phase::ipus({...})"),
                               " names the devices, or use SerialPhasedExecution")});
}

AskedStage askedStage(const StageRules& rules, const ir::Block& block, int block_index) {
  ABELE_REQUIRE(rules.group == 1 || block.group.empty(), E0702,
                {.what = cat(blockText(block), " names its devices under tensorParallel"),
                 .found = cat("devices ", joined(block.group), " and tensorParallel(", rules.group, ")"),
                 .remedy = "leave tensorParallel out, or give the block one ipu_id"});
  AskedStage asked;
  int explicit_device = ir::kNone;
  if (!rules.stages.empty()) {
    asked.number = explicitStage(rules, block);
    explicit_device = rules.stages[asked.number].ipu;
  } else if (rules.auto_stage == AutoStage::kAutoIncrement) {
    // Blocks are listed in the order of their first encounter; stage 0 is the code before them.
    asked.number = block_index;
  } else {
    ABELE_REQUIRE(
        block.ipu_id >= 0, E0304,
        {.what = cat("block \"", block.user_id, "\" has no ipu_id under ", inLanguage("AutoStage::kSameAsIpu")),
         .at = blockText(block),
         .expected = "an ipu_id, which is also the stage",
         .remedy = cat("give the block an ipu_id, or use ", inLanguage("AutoStage::kAutoIncrement"))});
    asked.number = block.ipu_id;
  }
  const bool is_phased = !rules.stages.empty() && rules.stages[asked.number].phase >= 0;
  if (explicit_device >= 0)
    asked.devices = {explicit_device};
  else if (!block.group.empty())
    asked.devices = block.group;
  else if (block.ipu_id >= 0)
    asked.devices = {block.ipu_id};
  else
    asked.devices = {is_phased ? deviceInPhase(rules, asked.number) : asked.number};
  if (is_phased) requireParity(rules, block, asked);
  return asked;
}

}  // namespace

int StageRules::spaceOf(int device) const {
  if (spaces.empty()) return 0;
  const int devices = static_cast<int>(spaces.size());
  const int of_process = *std::max_element(spaces.begin(), spaces.end()) + 1;
  return device / devices * of_process + spaces[static_cast<size_t>(device % devices)];
}

std::vector<AskedStage> askedStages(const ir::Graph& graph, const StageRules& rules) {
  std::vector<AskedStage> asked(1);  // the code before the first block: stage 0 on device 0
  if (rules.auto_stage == AutoStage::kAutoSplit) return asked;
  std::map<int, std::vector<int32_t>> devices_of;  // by stage number
  for (size_t i = 1; i < graph.blocks.size(); ++i) {
    AskedStage stage = askedStage(rules, graph.blocks[i], static_cast<int>(i));
    auto [it, is_new] = devices_of.emplace(stage.number, stage.devices);
    // The first block of a stage decides where it runs.
    if (!is_new && it->second != stage.devices)
      log::warn(blockText(graph.blocks[i]), " needs device ", joined(stage.devices), " but its stage ", stage.number,
                " is on device ", joined(it->second));
    stage.devices = it->second;
    asked.push_back(stage);
  }
  if (auto it = devices_of.find(0); it != devices_of.end()) asked[0].devices = it->second;
  return asked;
}

bool dividesStages(const ir::Graph& graph, const StageRules& rules) {
  if (rules.group > 1 || rules.auto_stage == AutoStage::kAutoSplit) return rules.group > 1;
  return std::ranges::any_of(graph.blocks, [](const ir::Block& block) { return !block.group.empty(); });
}

int forwardStageCount(const ir::Graph& graph) {
  int count = 0;
  std::vector<int32_t> active;
  for (const ir::Node& node : graph.nodes) {
    // A node outside every block got its stage from a neighbour, and a view does no work, so neither activates a stage.
    const bool in_block = node.block != ir::kNone || graph.blocks.size() <= 1;
    if (node.direction != ir::Direction::kForward || node.stage == ir::kNone || !in_block || node.is_view) continue;
    const ir::Stage& stage = graph.stages[node.stage];
    const std::vector<int32_t> devices = stage.isDivided() ? stage.group : std::vector<int32_t>{stage.device};
    if (devices != active) ++count;
    active = devices;
  }
  return count == 0 ? 1 : count;
}

}  // namespace abele::passes
