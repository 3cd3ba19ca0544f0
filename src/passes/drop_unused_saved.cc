// Before:  native_batch_norm_backward(%grad, %x, %w, %running_mean, %running_var, %mean, %invstd, train=true, ...)
// After:   the operands for the running statistics, which training never reads, are absent, so that they need not be
//          kept until backward
// Order:   before dce, which removes values that only these operands needed.
// Cost:    O(nodes * rows of the table).   Undone by: nothing.
#include <string_view>

#include "passes/pass.h"

namespace abele::passes {
namespace {

// Operands that an operator does not read if a flag among its arguments is set; it reads what forward saved for this
// micro-batch instead. test_same_bits.py checks that each row gives the same bits without the operands.
struct UnusedOperands {
  std::string_view op;
  size_t flag;
  std::vector<size_t> unused;
};
const std::vector<UnusedOperands>& unusedOperands() {
  static const std::vector<UnusedOperands> rows = {
      {"aten::native_batch_norm_backward", /*train*/ 7, {/*running_mean*/ 3, /*running_var*/ 4}},
  };
  return rows;
}

}  // namespace

Changed dropUnusedSaved(ir::Graph& graph, PassContext&) {
  Changed changed = Changed::kNo;
  for (ir::Node& node : graph.nodes)
    for (const UnusedOperands& row : unusedOperands()) {
      if (node.op != row.op || node.args.size() <= row.flag) continue;
      const Arg& flag = node.args[row.flag];
      if (flag.kind != Arg::Kind::kBool || !flag.i) continue;
      for (size_t operand : row.unused) {
        if (node.args[operand].kind == Arg::Kind::kNone) continue;
        node.args[operand] = Arg::none();
        changed = Changed::kYes;
      }
    }
  return changed;
}

}  // namespace abele::passes
