#include "passes/stage_rules.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/error.h"
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
  ABELE_REQUIRE(!rules.alternating || asked.device % 2 == phase % 2, E0402,
                {.what = cat("phase ", phase, " of a ParallelPhasedExecution is on device ", asked.device),
                 .at = blockText(block),
                 .expected = cat("an ", phase % 2 == 0 ? "even" : "odd", " device"),
                 .remedy = cat(inLanguage("Phase "), phase, inLanguage(": Phase::ipus({...})"),
                               " names the devices, or use SerialPhasedExecution")});
}

AskedStage askedStage(const StageRules& rules, const ir::Block& block, int block_index) {
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
    asked.device = explicit_device;
  else if (block.ipu_id >= 0)
    asked.device = block.ipu_id;
  else
    asked.device = is_phased ? deviceInPhase(rules, asked.number) : asked.number;
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
  std::map<int, int> device_of;  // by stage number
  for (size_t i = 1; i < graph.blocks.size(); ++i) {
    AskedStage stage = askedStage(rules, graph.blocks[i], static_cast<int>(i));
    auto [it, is_new] = device_of.emplace(stage.number, stage.device);
    // A stage runs on one device, which its first block decides.
    if (!is_new && it->second != stage.device)
      log::warn(blockText(graph.blocks[i]), " asks for device ", stage.device, " but its stage ", stage.number,
                " is on device ", it->second);
    stage.device = it->second;
    asked.push_back(stage);
  }
  if (auto it = device_of.find(0); it != device_of.end()) asked[0].device = it->second;
  return asked;
}

int forwardStageCount(const ir::Graph& graph, int group) {
  int count = 0;
  int32_t active = ir::kNone;
  for (const ir::Node& node : graph.nodes) {
    // A node outside every block got its stage from a neighbour, and a view does no work, so neither activates a stage.
    const bool in_block = node.block != ir::kNone || graph.blocks.size() <= 1;
    if (node.direction != ir::Direction::kForward || node.stage == ir::kNone || !in_block || node.is_view) continue;
    const int32_t device = graph.stages[node.stage].device / group;
    if (device != active) ++count;
    active = device;
  }
  return count == 0 ? 1 : count;
}

}  // namespace abele::passes
