// Graph -> Graph, one transform a file. List: passes.def. Order: pipeline.cc. Driven by compile/ and tools/abele-opt.
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

/// kAutoSplit: blocks are ignored, `cuts` say where stages begin.
enum class AutoStage { kSameAsIpu, kAutoIncrement, kAutoSplit };
/// How blocks become stages. An explicit list wins over auto_stage. Source: spec options.md section 9.
struct StageRules {
  struct ExplicitStage {
    std::vector<std::string> blocks;
    int ipu = -1;
    int phase = -1;  // phased execution only; stages of a phase stand together, phases in order
  };
  AutoStage auto_stage = AutoStage::kSameAsIpu;
  std::vector<ExplicitStage> stages;
  /// Pipelined: stage numbers must not fall along the data flow (E0303). Sharded: free.
  bool ordered = true;
  /// AutoSplit: forward nodes with at least this id begin the next stage; ascending. plan/auto_split.h chooses them.
  std::vector<ir::NodeId> cuts;
  /// AutoSplit: stages are dealt round so many devices. 0: a device each.
  int devices = 0;
  /// Parallel phased: even phases run on even devices, odd ones on odd devices (E0402).
  bool alternating = false;
  /// Memory spaces of the devices of one process; the next devices are those of the next process, which shares no
  /// memory with it: {0} is a memory for each device, {0, 0} one for each pair. Empty: one for all.
  std::vector<int> spaces;
  int spaceOf(int device) const;
};

/// What the device update needs to know at compile time; values that change per step live in the runtime.
struct OptimizerRules {
  using Kind = OptimizerKind;
  Kind kind = Kind::kNone;
  /// Parameter name -> index of its parameter group. A parameter without a group is not updated.
  std::map<std::string, int> group_of;
  using Group = OptimizerGroup;
  std::vector<Group> groups;
  /// Element types of the gradient sums and of the first and second moments; kUndefined: the parameter's.
  DType accumulator = DType::kUndefined, first_moment = DType::kUndefined, second_moment = DType::kUndefined;
  /// Largest norm of all gradients together; longer ones are shortened to it. Infinite: not looked at.
  double max_grad_norm = std::numeric_limits<double>::infinity();
  /// No update where a gradient sum is not finite.
  bool skips_overflow = false;
};

/// What backward makes again instead of keeping it from forward.
struct RecomputeRules {
  bool enabled = false;
  /// Also in the last stage, whose backward follows at once in most schedules.
  bool last_stage = false;
  std::vector<ir::ValueId> kept;  // values of the captured graph that are kept all the same
};

struct PassContext {
  StageRules stages;
  OptimizerRules optimizer;
  RecomputeRules recompute;
  /// Sums may be added up in another order than eager's, where that is faster: Options.fusion("fast").
  bool reorders_sums = false;
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
  std::vector<std::string> passes;  // empty: the default, weight gradients whole
  std::function<void(const std::string& pass, const ir::Graph&)> after_pass;  // --print-after-all
  std::vector<std::string> disabled;                                          // "dce" or "dce:2" (second occurrence)
};
/// What decides which passes a program needs.
struct PipelineFacts {
  bool training = false;
  bool recomputes = false;               // some values are made again: PassContext::recompute says which
  bool splits_weight_gradients = false;  // the schedule runs weight gradients apart from backward
  bool fuses_loss = false;               // of cross entropies, on devices that need no second copy for it
  bool approximates = false;             // roundings may differ from eager's: Options.fusion("fast")
  bool fuses_accumulation = false;       // gradients are added up, and the operators that make them may do it
  bool has_several_spaces = false;       // devices share no memory: StageRules::spaces says which
};
/// All passes of a program in order, each with the reason of its position in pipeline.cc.
std::vector<std::string> defaultPipeline(const PipelineFacts& facts);
/// One run of a pass in a pipeline. The second dce has occurrence 2.
struct PipelineStep {
  const PassRow* pass = nullptr;
  int occurrence = 1;
};
/// What runPipeline runs on this graph: the default where no passes are given, without those that are disabled.
/// Throws E0301.
std::vector<PipelineStep> pipelineSteps(const ir::Graph& graph, const PassContext& context,
                                        const PipelineOptions& options);
/// Runs them, verifying the form after each change; a pass that lies about Changed is an InternalError.
void runPipeline(ir::Graph& graph, PassContext& context, const PipelineOptions& options = {});

}  // namespace abele::passes
