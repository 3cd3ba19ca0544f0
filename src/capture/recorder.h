// Turns observed operator calls into an ir::Graph. Each of its parts has one job. Used by capture.cc and annotate.cc.
#pragma once

#include <exception>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "capture/attribution.h"
#include "capture/capture.h"
#include "capture/dispatch_mode.h"
#include "capture/draws.h"
#include "capture/graph_writer.h"
#include "capture/inputs.h"
#include "capture/locks.h"
#include "capture/losses.h"
#include "capture/model_memory.h"
#include "capture/node_recorder.h"
#include "capture/position.h"
#include "capture/reads.h"
#include "capture/rewrites.h"
#include "capture/storage_table.h"
#include "capture/values.h"

namespace abele::capture {

/// Decides the order of the steps for each operator, and keeps errors. Its parts do the work.
/// Threads: one at a time; autograd's device threads may call onOperator while the owner waits in backward.
class Recorder final : public OperatorObserver {
 public:
  explicit Recorder(const Request& request);

  /// Makes private copies of the micro-batch's tensors as the graph's arguments.
  std::vector<at::Tensor> addArguments();
  /// Sets the mode that observes for this recorder. Requires: it outlives the recording.
  void attach(const DispatchMode* mode) { mode_ = mode; }
  const DispatchMode& mode() const { return *mode_; }
  bool isTraining() const { return request_.training; }

  void onOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;
  /// Whether an operator is being recorded on this thread now.
  bool isInsideOperator() const { return depth_ > 0; }

  /// The value that holds the tensor's contents now; for a conjugated or negated view, the contents of its memory. Call
  /// outside onOperator. Throws E0105.
  ir::ValueId valueOf(const at::Tensor& tensor);
  /// Index in Graph::externals of a model tensor; adds the tensor if nothing has read it so far.
  int32_t externalOf(const ModelTensor& tensor);
  /// See annotate.h.
  void replaceBuffer(const at::Tensor& buffer, const at::Tensor& value, bool keeps_strides);
  /// Call after backward, which may have written into tensors that replaced buffers.
  void replaceBuffersAgain();
  /// See annotate.h.
  bool isReadAfterWrite(const at::Tensor& read, const at::Tensor& written);
  /// Keeps the value that a tensor holds now for Recording::kept.
  void keep(const at::Tensor& tensor) { recording_.kept.push_back(recording_.graph.baseOf(valueOf(tensor))); }
  /// summed_rows: as in Losses::mark.
  void markLoss(const at::Tensor& loss, int64_t summed_rows = 0);
  /// See Reads::readMemory.
  at::Tensor readMemory(const at::Tensor& tensor, const std::string& reader);

  /// Keeps an E0101 if an operand uses the model's memory through another storage than the model's.
  void requireKnownMemory(c10::ArrayRef<const c10::IValue> operands);

  /// Throws the first error of Abele's own, because the program may have swallowed or translated it.
  void rethrowFailure();
  /// Throws E0101 in place of torch's error about locked memory.
  void rethrowLockedRead(const std::exception& error);
  /// Returns the recording. Adds the tensors from outside that the program has written, and a list of tensors that the
  /// program still holds but does not return.
  Recording finish();

  Attribution& attribution() { return attribution_; }
  Values& values() { return values_; }
  Inputs& inputs() { return inputs_; }
  Locks& locks() { return locks_; }
  Reads& reads() { return reads_; }
  Rewrites& rewrites() { return rewrites_; }
  const Losses& losses() const { return losses_; }
  bool stridesGroups() const { return request_.strides_groups; }
  const GraphWriter& writer() const { return writer_; }
  Recording& recording() { return recording_; }
  /// Whether hooks of the program saved tensors for backward: it runs their other halves.
  bool savesByHooks() const { return saves_by_hooks_; }
  ir::Graph& graph() { return recording_.graph; }

 private:
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool looksElsewhere(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void callUnlocked(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Calls fn, and keeps an error of Abele's own that fn throws.
  template <class Fn>
  auto keepingErrors(const Fn& fn) {
    try {
      return fn();
    } catch (const Error&) {
      fail();
      throw;
    }
  }
  void fail();
  /// Results of forward that are alive, except those that the program returns, in the order of the program.
  using HeldResults = std::multimap<const ir::Node*, const c10::StorageImpl*>;
  HeldResults heldResults();
  void noteHeldResult();
  /// What the buffer held at first; kNone if nothing reads it.
  ir::ValueId firstValueOf(const at::Tensor& buffer);
  /// Throws E0108 if results depend on the strides of a buffer that keeps them.
  void requireKeptStrides();

  const Request& request_;
  Recorder* outer_;  // for a nested capture, the recorder of the enclosing program; else null
  Recording recording_;
  Attribution attribution_;
  Position position_;
  GraphWriter writer_;
  StorageTable table_;
  MemoryOfModel memory_;
  Inputs inputs_;
  Values values_;
  Locks locks_;
  Losses losses_;
  NodeRecorder nodes_;
  Draws draws_;
  Reads reads_;
  Rewrites rewrites_;
  const DispatchMode* mode_ = nullptr;
  struct Replacement {
    at::Tensor buffer, value;
    ir::ValueId contents = ir::kNone;  // the base value in the memory of `value`
    bool keeps_strides = false;
  };
  std::vector<Replacement> replacements_;
  std::exception_ptr failure_;
  int depth_ = 0;
  bool saves_by_hooks_ = false;
};

/// The recorder of the capture on this thread; null if there is none.
Recorder*& currentRecorder();

}  // namespace abele::capture
