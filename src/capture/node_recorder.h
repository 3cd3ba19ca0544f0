// Makes a node of one operator: looks up operands before it runs, results and writes afterwards. Used by recorder.cc.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/DefaultDtype.h>

#include "base/arg.h"
#include "base/normals.h"
#include "capture/boxed_call.h"
#include "capture/capture.h"
#include "capture/locks.h"
#include "capture/values.h"

namespace abele::capture {

/// Threads: one at a time, as Recorder.
class NodeRecorder {
 public:
  struct PendingWrite {
    at::Tensor tensor;
    Type type;  // the type before the operator runs
    const c10::StorageImpl* storage = nullptr;
    bool is_input = false;
    ir::Write write;
  };
  /// The state of an operator between begin() and end().
  struct Call {
    std::string op;
    std::vector<Arg> args;
    std::vector<PendingWrite> writes;
    Where where;
    bool varies = false;  // whether its results may differ between micro-batches
    int64_t random_draws = ir::kNone;
    int64_t random_offset = ir::kNone;
    Normals normals;
    bool draws_vary = false;
    int64_t time_ns = 0;
    bool is_view_operator = false;
    bool takes_tensors = false;
    bool takes_floats = false;
    bool takes_device = false;  // whether an operand is on an accelerator
    at::Tensor host_operand;    // Values::isHostResult
  };

  /// prints: Recording::prints.
  NodeRecorder(const Request& request, Position* position, StorageTable* table, GraphWriter* writer, Values* values,
               const Locks* locks, std::unordered_map<ir::ValueId, ContentsPrint>* prints)
      : request_(request),
        position_(*position),
        table_(*table),
        writer_(*writer),
        values_(*values),
        locks_(*locks),
        prints_(*prints) {}

  /// Looks up the operands, which are on the stack. Throws E0101, E0105, E0106.
  Call begin(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// how: a function that runs the operator; empty: calls it directly.
  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call, const RunOperator& how = {});
  /// Adds the node with the results that are now on the stack. Returns false, without a node, if all results were known
  /// already. Throws E0101, E0105, E0106.
  bool end(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call);

 private:
  /// Returns the scope of the module that the operator reads.
  std::string tellReads(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  const ir::Node* producerOf(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  Arg argumentOf(const c10::Argument& schema, const c10::IValue& value, int32_t index, bool is_written, Call& call);
  int64_t operandOf(const at::Tensor& tensor, int32_t index, int32_t element, bool is_written, Call& call);
  void print(ir::ValueId value, const at::Tensor& contents);
  void clear(const at::Tensor& fresh) const;
  int64_t writtenOperand(const at::Tensor& tensor, int32_t index, int32_t element, Call& call);
  void resolveResize(PendingWrite& write, Call& call);
  void applyWrites(Call& call, ir::NodeId node);
  ir::ValueId resultOf(const at::Tensor& tensor, const Call& call, ir::NodeId node, bool* is_computed);
  void tellMade(const std::vector<std::vector<ir::ValueId>>& results, const torch::jit::Stack& stack,
                const Call& call) const;
  void sayType(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call);
  void addNode(Call& call, std::vector<std::vector<ir::ValueId>> results, bool is_view);

  const Request& request_;
  Position& position_;
  StorageTable& table_;
  GraphWriter& writer_;
  Values& values_;
  const Locks& locks_;
  std::unordered_map<ir::ValueId, ContentsPrint>& prints_;
  const caffe2::TypeMeta default_type_ = c10::get_default_dtype();
};

}  // namespace abele::capture
