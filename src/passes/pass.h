// Passes change a graph; each file has one transform. List: passes.def. Order: pipeline.cc. Used by compile/ and
// tools/abele-opt.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/optimizers.h"
#include "ir/graph.h"
#include "ir/verify.h"

namespace abele::passes {

enum class Changed : bool { kNo, kYes };

/// kAutoSplit ignores blocks: `cuts` are the ids at which stages begin.
enum class AutoStage { kSameAsIpu, kAutoIncrement, kAutoSplit };
/// Turns blocks into stages. An explicit list wins over auto_stage. Source: spec options.md section 9.
struct StageRules {
  struct ExplicitStage {
    std::vector<std::string> blocks;
    int ipu = -1;
    int phase = -1;  // phased execution only; the stages of a phase are consecutive, and phases are in order
  };
  AutoStage auto_stage = AutoStage::kSameAsIpu;
  std::vector<ExplicitStage> stages;
  /// True for a pipeline: stage numbers must not fall along the data flow (E0303). Sharded code has no such rule.
  bool ordered = true;
  /// AutoSplit: forward nodes with at least this id begin the next stage; ascending. split/auto_split.h chooses the
  /// ids.
  std::vector<ir::NodeId> cuts;
  /// AutoSplit: stage s runs on device s modulo this number. 0: each stage has its own device.
  int devices = 0;
  /// Parallel phased: even phases run on even devices, odd ones on odd devices (E0402).
  bool alternating = false;
  /// The memory space of each device of one process. Further devices belong to further processes, which share no
  /// memory: {0} means one memory for each device, {0, 0} one for each pair. Empty: one memory for all.
  std::vector<int> spaces;
  /// A memory that reads a range of a weight holds the whole of it.
  bool holds_whole = false;
  /// Devices of each of the user's devices: device v of a block becomes devices v * group to v * group + group - 1, and
  /// pass shard divides its work among them.
  int group = 1;
  int spaceOf(int device) const;
};

/// Facts about the optimizer that are fixed at compile time. Values that change from step to step are in the runtime.
struct OptimizerRules {
  using Kind = OptimizerKind;
  Kind kind = Kind::kNone;
  /// Parameter name -> index of its parameter group. A parameter without a group is not updated.
  std::map<std::string, int> group_of;
  using Group = OptimizerGroup;
  std::vector<Group> groups;
  /// Element types of the gradient sums and of the first and second moments; kUndefined: the parameter's type.
  DType accumulator = DType::kUndefined, first_moment = DType::kUndefined, second_moment = DType::kUndefined;
  /// The largest norm of all gradients together; longer gradients are scaled down to it. Infinite: no clipping.
  double max_grad_norm = std::numeric_limits<double>::infinity();
  /// An update does nothing if a gradient sum is not finite.
  bool skips_overflow = false;
};

/// The values that backward computes again instead of keeping them from forward.
struct RecomputeRules {
  bool enabled = false;
  /// Recompute in the last stage too. This rarely saves memory, because its backward follows its forward at once in
  /// most schedules.
  bool last_stage = false;
  std::vector<ir::ValueId> kept;  // values of the captured graph that are never recomputed
};

struct PassContext {
  StageRules stages;
  OptimizerRules optimizer;
  RecomputeRules recompute;
  /// Sums may be in another order than eager's if that is faster: Options.fusion("fast").
  bool reorders_sums = false;
  /// Whether `parts` gives the bits of `whole` on this machine. Both graphs have the same inputs, and results of the
  /// same sizes and element types in the same order; strides of results may differ. Pass shard cuts a node only then.
  /// Empty: it cuts nothing.
  std::function<bool(const ir::Graph& whole, const ir::Graph& parts)> gives_same_bits = {};
};

#define ABELE_PASS(function, name, needs, gives, summary) Changed function(ir::Graph& graph, PassContext& context);
#include "passes/passes.def"
#undef ABELE_PASS

using PassFunction = Changed (*)(ir::Graph&, PassContext&);
struct PassRow {
  const char* name;
  PassFunction run;
  ir::Form needs;
  ir::Form gives;
  const char* summary;
};
/// All rows of passes.def.
const std::vector<PassRow>& allPasses();

struct PipelineOptions {
  std::vector<std::string> passes;  // empty: the default pipeline, without splitting weight gradients
  std::function<void(const std::string& pass, const ir::Graph&)> after_pass;  // --print-after-all
  std::vector<std::string> disabled;                                          // "dce" or "dce:2" (second occurrence)
  /// Checks each pass: that it says whether it changed the graph, and the form of what it changed. Otherwise only the
  /// last graph's form is checked.
  bool checks_passes = true;
};
/// The facts that decide which passes a program needs.
struct PipelineFacts {
  bool training = false;
  bool shards = false;                   // stages have several devices: ir::Stage::group
  bool recomputes = false;               // some values are computed again: PassContext::recompute
  bool splits_weight_gradients = false;  // the schedule runs weight gradients separately from backward
  bool fuses_loss = false;               // cross entropies are fused, on devices where that needs no second copy
  bool approximates = false;             // roundings may differ from eager's: Options.fusion("fast")
  bool fuses_accumulation = false;       // gradients are added up, and the operators that make them may add them to the
                                         // sum
  bool has_several_spaces = false;       // devices have separate memories: StageRules::spaces
};
/// All passes of a program in order. pipeline.cc gives the reason of each position.
std::vector<std::string> defaultPipeline(const PipelineFacts& facts);
/// One run of a pass in a pipeline. The second dce has occurrence 2.
struct PipelineStep {
  const PassRow* pass = nullptr;
  int occurrence = 1;
};
/// The steps that runPipeline runs on this graph: the given passes or the default pipeline, without disabled passes.
/// Throws E0301.
std::vector<PipelineStep> pipelineSteps(const ir::Graph& graph, const PassContext& context,
                                        const PipelineOptions& options);
/// Runs the steps. Throws E0203 for a wrong graph, and InternalError for a wrong pass.
void runPipeline(ir::Graph& graph, PassContext& context, const PipelineOptions& options = {});

}  // namespace abele::passes
