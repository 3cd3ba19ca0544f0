// Finds the value of the graph that a tensor's memory holds now. Used by the parts of recorder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "capture/graph_writer.h"
#include "capture/inputs.h"
#include "capture/position.h"
#include "capture/storage_table.h"

namespace abele::capture {

/// Throws E0105 unless it is a dense, strided CPU tensor of a type that Abele knows.
void requireSupported(const at::Tensor& tensor, const Position& position, c10::Device device);
inline void requireSupported(const at::Tensor& tensor, const Position& position) {
  requireSupported(tensor, position, position.device);
}

/// Identifies a tensor by (storage, offset, sizes, strides, dtype), because autograd's saved variables return as new
/// TensorImpls.
/// Threads: owner only.
class Values {
 public:
  /// outer: for a nested capture, the values of the enclosing program; else null.
  Values(const Position* position, StorageTable* table, GraphWriter* writer, Inputs* inputs, Values* outer)
      : position_(*position), table_(*table), writer_(*writer), inputs_(*inputs), outer_(outer) {}

  /// The value that holds the tensor's contents. Adds a view if no operator has made that geometry, and a constant if
  /// the memory comes from outside. Throws E0105.
  ir::ValueId lookUp(const at::Tensor& tensor);
  /// The place of the tensor's memory, in a segment that has a base value. Throws E0105.
  Place placeOf(const at::Tensor& tensor);
  /// Whether an operator on an accelerator put this result into the host's memory. Attention's kernels do so with the
  /// position in the random stream that their backward needs.
  bool isHostResult(const at::Tensor& tensor) const;
  /// A known value with this geometry in the memory of the segment's base value, or kNone.
  ir::ValueId findView(const Segment& segment, const Type& type, int64_t offset) const;
  /// The base value whose memory the tensor uses; kNone if it is not known.
  ir::ValueId contentsOf(const at::Tensor& tensor) const;
  /// Whether the tensor has been an input, an operand or a result.
  bool knows(const at::Tensor& tensor) const { return table_.knows(tensor); }
  /// Whether the tensor's contents may differ between micro-batches.
  bool mayVary(const at::Tensor& tensor) const;
  /// A tensor over all the memory of the base value that contains this tensor. Throws E0105.
  at::Tensor memoryOf(const at::Tensor& tensor);
  /// If no operator wrote this memory, records its present contents, because an operator will read it.
  void adoptContents(const at::Tensor& tensor);

 private:
  const Position& position_;
  StorageTable& table_;
  GraphWriter& writer_;
  Inputs& inputs_;
  Values* outer_;
};

}  // namespace abele::capture
