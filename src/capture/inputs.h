// What the program finds when it starts: tensors of the model, arguments, and memory from outside, which becomes
// constants.
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

/// Threads: owner only.
class Inputs {
 public:
  /// Makes the tensors of the model known. outer: values of the program around a nested one, or null.
  Inputs(const Request& request, Recording* recording, StorageTable* table, GraphWriter* writer, Values* outer);

  /// A private copy of an argument, known as the graph's next. Requires: requireSupported (values.h).
  void addArgument(const at::Tensor& given);
  const std::vector<at::Tensor>& arguments() const { return arguments_; }
  void addConstant(const at::Tensor& tensor, const std::string& name);
  /// A tensor of the model becomes an input of the graph when something reads it first.
  void addModelTensor(Segment& segment);

  /// Does the tensor look at memory that no operator of the program has made?
  bool contains(const at::Tensor& tensor) const;
  /// Is it an argument, unchanged?
  bool isArgument(const at::Tensor& tensor) const;
  /// The buffer that a tensor is, or null.
  const ModelTensor* bufferOf(const at::Tensor& tensor) const;
  /// The line that met it first, where it is a constant.
  std::optional<std::string> lineOfConstant(const at::Tensor& tensor) const;

  /// As of annotate.h, where forward has made the value. Requires: the buffer has a base value.
  void replace(const at::Tensor& buffer, ir::ValueId value, const Where& where);
  /// Whether the tensor shares some, but not all, bytes with another input of the graph. Requires: the tensor is known.
  bool overlapsAnotherInUse(const at::Tensor& tensor) const;
  /// At the end: adds the kUpdate outputs, and notes what else from outside the program has written.
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
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::TensorImpl>, int32_t>> outside_;  // the tensors that met it first
};

}  // namespace abele::capture
