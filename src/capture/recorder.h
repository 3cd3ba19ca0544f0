// Turns observed operator calls into an ir::Graph. Used by capture.cc and annotate.cc. Read first: storage_table.h.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "capture/attribution.h"
#include "capture/capture.h"
#include "capture/dispatch_mode.h"
#include "capture/random_stream.h"
#include "capture/storage_table.h"
#include "ir/graph.h"

namespace c10 {
struct Argument;
}

namespace abele::capture {

/// A tensor is known by (storage, offset, sizes, strides, dtype): saved variables come back as new TensorImpls.
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

  /// The value that holds the tensor's contents now. Call outside onOperator. Throws E0105.
  ir::ValueId valueOf(const at::Tensor& tensor);
  /// Memory of values that may vary is locked while the program runs, except for operators that are recorded.
  class Unlocked;
  /// Until lockAgain() or the end nothing is locked, here and in the programs around.
  void unlockAll() noexcept;
  void lockAgain();
  /// Throws E0101 in place of torch's error about locked memory.
  void rethrowLockedRead(const std::exception& error);

  /// Has the tensor been an input, an operand or a result of the recording?
  bool knows(const at::Tensor& tensor) const { return table_.knows(tensor); }
  /// Do its bytes belong to something outside the micro-batch?
  bool isExternal(const at::Tensor& tensor);
  /// The line that met it first, where it is memory from outside that belongs neither to the model nor to the
  /// arguments.
  std::optional<std::string> constantOf(const at::Tensor& tensor);
  void addConstant(const at::Tensor& tensor, const std::string& name);
  /// All the memory that one base value describes and the tensor lies in. Throws E0105.
  at::Tensor memoryOf(const at::Tensor& tensor);
  /// summed_rows: of a loss that is a sum over so many rows; dividing it by them gives a loss again.
  void markLoss(const at::Tensor& loss, int64_t summed_rows = 0);
  bool isSumOver(const at::Tensor& loss, double rows) const;
  void keep(ir::ValueId value) { recording_.kept.push_back(graph().baseOf(value)); }
  /// The one loss that remains. Throws E0102, E0103.
  std::pair<at::Tensor, ir::ValueId> findLoss() const;
  /// Index in Graph::externals of a model tensor; adds it when nothing has read it so far.
  int32_t externalOf(const ModelTensor& tensor);
  /// Adds the kUpdate outputs and the written arguments, and hands the recording over.
  Recording finish();
  bool mayVary(const at::Tensor& tensor);
  /// The program reads the tensor's memory itself; reader: how. Returns what it may read. Throws E0101 when its value
  /// may differ between micro-batches and the request does not trust it.
  at::Tensor readMemory(const at::Tensor& tensor, const std::string& reader);
  /// Values read until the matching allowReads(false) do not steer the program. Nests.
  void allowReads(bool allow) { allowed_reads_ += allow ? 1 : -1; }
  /// stop - start of two integers of one element, when the program adds only constants between them.
  std::optional<int64_t> constantDifference(const at::Tensor& start, const at::Tensor& stop);
  /// Operators recorded so far whose name contains `part`.
  int64_t numOperators(const std::string& part) const;
  /// Times that the value a tensor holds now, or a view of it, is read or returned.
  int64_t numReaders(const at::Tensor& tensor);
  /// Is it an argument of the program, unchanged?
  bool isArgument(const at::Tensor& tensor);
  /// The first error of Abele's own, which the program may have swallowed or translated.
  void rethrowFailure();

  Attribution& attribution() { return attribution_; }
  ir::Graph& graph() { return recording_.graph; }
  const ir::Graph& graph() const { return recording_.graph; }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct PendingWrite;
  struct Call;
  /// A number of batches that the program has just read.
  struct BatchCount {
    at::Tensor tensor;
    int64_t value = 0;
    Where where;
  };
  struct LossMark {
    at::Tensor tensor;
    ir::ValueId value = ir::kNone;
    std::string source;
    int64_t summed_rows = 0;
  };

  void fail();
  bool holdsVarying(const c10::StorageImpl* storage) const;
  void updateLock(c10::StorageImpl* storage);

  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void bakeRead(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  at::Tensor recordRead(const at::Tensor& tensor);
  void recordComparison(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  const ir::Node* makerOf(ir::ValueId value);
  ir::ValueId contentsOf(const c10::IValue& read);
  bool isCertain(const c10::IValue& read);
  bool isQuestionOfInputs(const c10::IValue& read);
  bool isArgument(ir::ValueId value);
  bool countsBatches(const torch::jit::Stack& stack);
  void averageStatistics(torch::jit::Stack* stack);
  void requireNoCount();
  void noteWrittenConstants();
  void lendGenerator(c10::IValue& generator);
  void recordRandom(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call);

  void stayAtHome(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void widenOperands(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void widenWeights(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void widenIndices(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void cast(c10::IValue& tensor, at::ScalarType type);
  bool passMetaTensors(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  bool recordWithFixedShapes(torch::jit::Stack* stack);
  bool recordWithGradMode(torch::jit::Stack* stack);
  void requireFixedShapes(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void recordLazyView(torch::jit::Stack* stack);
  void requireNoLazyCopy(const at::Tensor& written);
  void adoptContents(const at::Tensor& tensor);

  Call begin(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  Arg argumentOf(const c10::Argument& schema, const c10::IValue& value, int32_t index, bool is_written, Call& call);
  int64_t operandOf(const at::Tensor& tensor, int32_t index, int32_t element, bool is_written, Call& call);
  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, Call& call);
  void end(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Call& call);
  void resolveResize(PendingWrite& write, Call& call);
  void applyWrites(Call& call, ir::NodeId node);
  ir::ValueId resultOf(const at::Tensor& tensor, const Call& call, ir::NodeId node, bool* is_new);
  ir::ValueId freshResult(const at::Tensor& tensor, const Call& call, ir::NodeId node);

  Place placeOf(const at::Tensor& tensor);
  void materialise(Segment& segment);
  ir::ValueId lookUp(const at::Tensor& tensor);
  ir::ValueId findView(const Segment& segment, const Type& type, int64_t offset) const;
  ir::Node& addNode(const std::string& op, const Where& where);
  void checkSupported(const at::Tensor& tensor) const;
  [[noreturn]] void refuseRead() const;
  bool varies(ir::ValueId value) const { return varies_.at(graph().baseOf(value)); }
  void setVaries(ir::ValueId value, bool varies);
  std::string position() const;

  const Request& request_;
  Recorder* outer_;  // of the program around this one, or null
  Recording recording_;
  RandomStream random_;
  StorageTable table_;
  Attribution attribution_;
  const DispatchMode* mode_ = nullptr;
  std::vector<bool> varies_;  // by base value: may it differ between micro-batches?
  std::vector<at::Tensor> arguments_;
  std::vector<std::pair<WeakStorage, int32_t>> constants_;  // memory from outside, and its external
  std::vector<LossMark> losses_;
  Where where_;          // of the operator being recorded
  std::string op_name_;  // of it, for messages
  std::exception_ptr failure_;
  int64_t recorded_draws_ = 0;
  std::vector<std::pair<WeakStorage, WeakStorage>> lazy_copies_;  // source and copy of recordLazyView
  std::optional<BatchCount> count_;                               // that only averageStatistics may follow
  bool is_unlocked_ = false;                                      // unlockAll() was called
  int depth_ = 0;
  int allowed_reads_ = 0;
};

/// The recorder that captures on this thread, or null.
Recorder*& currentRecorder();

}  // namespace abele::capture
