// The program's inputs: tensors of the model, arguments, and memory from outside, which becomes constants.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/capture.h"
#include "capture/graph_writer.h"
#include "capture/storage_table.h"

namespace abele::capture {

class Values;

/// The elements of a tensor of the buffer's shape that have memory of their own in the buffer, which may be expanded.
at::Tensor distinctPart(const at::Tensor& tensor, const at::Tensor& buffer);

/// Threads: owner only.
class Inputs {
 public:
  /// Adds the tensors of the model. outer: for a nested capture, the values of the enclosing program; else null.
  Inputs(const Request& request, Recording* recording, StorageTable* table, GraphWriter* writer, Values* outer);

  /// Adds a private copy of an argument as the graph's next argument. Requires: requireSupported (values.h).
  void addArgument(const at::Tensor& given);
  const std::vector<at::Tensor>& arguments() const { return arguments_; }
  void addConstant(const at::Tensor& tensor, const std::string& name);
  /// Makes a tensor of the model an input of the graph; called when it is first read.
  void addModelTensor(Segment& segment);

  /// Whether the tensor's memory comes from outside: no operator of the program has made it.
  bool contains(const at::Tensor& tensor) const;
  /// Whether the tensor is an argument, unchanged.
  bool isArgument(const at::Tensor& tensor) const;
  /// The model's buffer that this tensor is; null if the tensor is not a buffer.
  const ModelTensor* bufferOf(const at::Tensor& tensor) const;
  /// For a constant, the line that first used it.
  std::optional<std::string> lineOfConstant(const at::Tensor& tensor) const;

  /// replaceBuffer() of annotate.h for a value that forward has made, which has the shape of distinctPart(). Requires:
  /// the buffer has a base value.
  void replace(const at::Tensor& buffer, ir::ValueId value, const Where& where);
  /// Whether the tensor shares some, but not all, bytes with another input of the graph. Requires: the tensor is known.
  bool overlapsAnotherInUse(const at::Tensor& tensor) const;
  /// Call at the end: adds the kUpdate outputs, and collects other outside tensors that the program has written.
  void recordWrites();

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Replaced {
    ir::ValueId before = ir::kNone, after = ir::kNone;
  };

  ir::ValueId lastValueOf(const Segment& segment) const;
  void noteWrittenConstants();
  void noteOutside();

  const Request& request_;
  Recording& recording_;
  StorageTable& table_;
  GraphWriter& writer_;
  Values* outer_;
  std::vector<at::Tensor> arguments_;
  std::map<int32_t, Replaced> replaced_;                    // by external
  std::vector<std::pair<WeakStorage, int32_t>> constants_;  // memory from outside, and its external
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::TensorImpl>, int32_t>> outside_;  // their first tensors
};

}  // namespace abele::capture
