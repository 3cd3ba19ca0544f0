// Values that the program reads while it is captured: baked in where they are constants, checked in every step where
// that is what the program or its options ask for, E0101 otherwise. Used by recorder.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capture/boxed_call.h"
#include "capture/capture.h"
#include "capture/dispatch_mode.h"
#include "capture/locks.h"
#include "capture/values.h"

namespace abele::capture {

/// Threads: one at a time, as Recorder.
class Reads {
 public:
  /// record: records one more operator, as if the program had called it.
  Reads(const Request& request, Position* position, StorageTable* table, const GraphWriter* writer, Values* values,
        const Inputs* inputs, Locks* locks, RunOperator record)
      : request_(request),
        position_(*position),
        table_(*table),
        writer_(*writer),
        values_(*values),
        inputs_(*inputs),
        locks_(*locks),
        record_(std::move(record)) {}

  /// Does the operator hand a tensor's value to the program?
  static bool isRead(const std::string& op);
  /// Runs such an operator. Throws E0101.
  void answer(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// The program reads the tensor's memory itself, outside all operators; reader: how. Returns what it may read. Throws
  /// E0101 when its value may differ between micro-batches, unless each step can check that it does not.
  at::Tensor readMemory(const at::Tensor& tensor, const std::string& reader, const DispatchMode& mode);
  /// May the program keep a shape that follows from the tensor's values? The operator checks it in each step.
  bool keepsShapeOf(const at::Tensor& tensor);
  /// Values read until the matching allow(false) do not steer the program. Nests.
  void allow(bool allow) { allowed_ += allow ? 1 : -1; }
  bool areAllowed() const { return allowed_ > 0; }

  /// Before every operator: a number of batches that has just been read may only weigh statistics.
  void beforeOperator(torch::jit::Stack* stack);
  /// E0101 where the last value that was read is a number of batches.
  void requireNoCount();
  /// At the end: E0101 where the program has kept what follows from a buffer, and writes that buffer.
  void requireUnwrittenBuffers();

 private:
  /// A number of batches that the program has just read.
  struct BatchCount {
    at::Tensor tensor;
    int64_t value = 0;
    Where where;
  };

  /// A buffer that the program has read.
  struct KeptBuffer {
    int32_t external = ir::kNone;
    std::string reader;
    Where where;
  };

  const ir::Graph& graph() const { return writer_.graph(); }
  const ir::Node* makerOf(const c10::IValue& read) const;
  void recordComparison(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  at::Tensor recordRead(const at::Tensor& tensor);
  bool isCertain(const c10::IValue& read) const;
  bool isChecked(const at::Tensor& read);
  bool isComparisonChecked(const torch::jit::Stack& stack);
  bool isWholeQuestion(const at::Tensor& read) const;
  bool followsFromIntegers(const at::Tensor& read);
  bool isIntegerOrBuffer(ir::ValueId value, std::vector<int32_t>& buffers) const;
  bool countsBatches(const torch::jit::Stack& stack);

  const Request& request_;
  Position& position_;
  StorageTable& table_;
  const GraphWriter& writer_;
  Values& values_;
  const Inputs& inputs_;
  Locks& locks_;
  const RunOperator record_;
  std::optional<BatchCount> count_;  // beforeOperator decides what follows it
  std::vector<KeptBuffer> kept_buffers_;
  int allowed_ = 0;
};

}  // namespace abele::capture
