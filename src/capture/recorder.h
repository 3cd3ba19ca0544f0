// Turns observed operator calls into an ir::Graph, by parts with one job each. Used by capture.cc and annotate.cc.
#pragma once

#include <exception>
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

/// Knows the order of things: what happens to an operator, and what an error leaves behind. The parts know the rest.
/// Threads: one at a time; autograd's device threads may call onOperator while the owner waits in backward.
class Recorder final : public OperatorObserver {
 public:
  explicit Recorder(const Request& request);

  /// Private copies of the micro-batch, known as the graph's arguments.
  std::vector<at::Tensor> addArguments();
  /// The mode that observes for this recorder; must outlive the recording.
  void attach(const DispatchMode* mode) { mode_ = mode; }
  const DispatchMode& mode() const { return *mode_; }
  bool isTraining() const { return request_.training; }

  void onOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;
  /// Is an operator being recorded on this thread right now?
  bool isInsideOperator() const { return depth_ > 0; }

  /// The value that holds the tensor's contents now, or those of the memory that a conjugated or negated view looks at.
  /// Call outside onOperator. Throws E0105.
  ir::ValueId valueOf(const at::Tensor& tensor);
  /// Index in Graph::externals of a model tensor; adds it when nothing has read it so far.
  int32_t externalOf(const ModelTensor& tensor);
  /// As of annotate.h.
  void replaceBuffer(const at::Tensor& buffer, const at::Tensor& value);
  /// Keeps the value that a tensor holds now for Recording::kept.
  void keep(const at::Tensor& tensor) { recording_.kept.push_back(recording_.graph.baseOf(valueOf(tensor))); }
  /// summed_rows: as of Losses::mark.
  void markLoss(const at::Tensor& loss, int64_t summed_rows = 0);
  /// As of Reads::readMemory.
  at::Tensor readMemory(const at::Tensor& tensor, const std::string& reader);

  /// Keeps E0101 for operands that look at the model's memory by another storage than the model's.
  void requireKnownMemory(c10::ArrayRef<const c10::IValue> operands);

  /// The first error of Abele's own, which the program may have swallowed or translated.
  void rethrowFailure();
  /// Throws E0101 in place of torch's error about locked memory.
  void rethrowLockedRead(const std::exception& error);
  /// Adds what the program has written and what it holds besides its results, and hands the recording over.
  Recording finish();

  Attribution& attribution() { return attribution_; }
  Values& values() { return values_; }
  Inputs& inputs() { return inputs_; }
  Locks& locks() { return locks_; }
  Reads& reads() { return reads_; }
  const Losses& losses() const { return losses_; }
  bool stridesGroups() const { return request_.strides_groups; }
  const GraphWriter& writer() const { return writer_; }
  Recording& recording() { return recording_; }
  ir::Graph& graph() { return recording_.graph; }

 private:
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool looksElsewhere(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void callUnlocked(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Calls fn. An error of Abele's own that leaves it is kept.
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
  void noteHeldResult();

  const Request& request_;
  Recorder* outer_;  // of the program around this one, or null
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
  std::exception_ptr failure_;
  int depth_ = 0;
};

/// The recorder that captures on this thread, or null.
Recorder*& currentRecorder();

}  // namespace abele::capture
