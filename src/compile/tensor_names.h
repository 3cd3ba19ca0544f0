// Long names of the values of a program, and the anchors that read them. Used by Session::compile.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "compile/compiled_program.h"

namespace abele::compile {

/// An anchor of this name returns the factor of a step's loss.
inline constexpr char kFinalLossScale[] = "finalLossScale";

/// Names as PopTorch programs use them, in the order of the program: "input", "input/1"; parameters and buffers under
/// their own names; "<module path>/<Op>:<result>", with "/<n>" for its n-th repetition; "loss"; "Gradient___<param>";
/// "UpdatedVar___<param>"; and the values of the optimizer. Source: spec executor.md section 8; where it has no form,
/// ours.
class TensorNames {
 public:
  TensorNames(const capture::Recording& recording, const OptimizerSpec& optimizer);
  const std::vector<std::string>& all() const { return all_; }

  /// Adds a result for every anchor of a value of the captured graph. Throws E0708 for unknown names.
  /// Requires: the graph is recording.graph before any pass; targets from `next_target` on are unused.
  std::vector<CompiledAnchor> addAnchors(const ProgramOptions& options, int32_t next_target, ir::Graph& graph) const;
  /// Does the same for new values of parameters, which exist only after the passes.
  static void addUpdated(std::vector<CompiledAnchor>& anchors, ir::Graph& lowered);

 private:
  void add(const std::string& name, ir::ValueId value);
  void addOperations(const ir::Graph& graph);
  void addTraining(const ir::Graph& graph, const OptimizerSpec& optimizer);

  std::vector<std::string> all_;
  std::map<std::string, ir::ValueId> values_;
  std::map<std::string, int32_t> updated_;  // long name -> external
};

}  // namespace abele::compile
