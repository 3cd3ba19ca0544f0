// Values that the program reads while it is captured. A constant is read as it is. Other values are checked in every
// step if the options or the kind of read allow it; otherwise the read throws E0101. Used by recorder.cc.
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

  /// Whether the operator returns a tensor's value to the program.
  static bool isRead(const std::string& op);
  /// Runs an operator that reads. Throws E0101.
  void answer(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  /// Call before the program reads the tensor's memory without an operator. reader: the function that reads. Returns
  /// the tensor to read. Throws E0101 if its value may differ between micro-batches, unless each step can check that it
  /// does not.
  at::Tensor readMemory(const at::Tensor& tensor, const std::string& reader, const DispatchMode& mode);
  /// Whether the program may keep a shape that follows from the tensor's values. The operator then checks the shape in
  /// each step.
  bool keepsShapeOf(const at::Tensor& tensor);
  /// Allows reads until the matching allow(false), because they do not change what the program does. Nests.
  void allow(bool allow) { allowed_ += allow ? 1 : -1; }
  bool areAllowed() const { return allowed_ > 0; }

  /// Call before every operator. If the program has just read a number of batches, the operator may only use it to
  /// weigh statistics.
  void beforeOperator(torch::jit::Stack* stack);
  /// Throws E0101 if the last value that was read is a number of batches.
  void requireNoCount();
  /// Call at the end. Throws E0101 if the program keeps values that follow from a buffer and also writes that buffer.
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
  std::optional<BatchCount> count_;  // checked by beforeOperator
  std::vector<KeptBuffer> kept_buffers_;
  int allowed_ = 0;
};

}  // namespace abele::capture
