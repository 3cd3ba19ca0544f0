// Tensor -> value: which value of the graph a tensor's memory holds now. Used by the parts of recorder.h.
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

/// A tensor is known by (storage, offset, sizes, strides, dtype): saved variables come back as new TensorImpls.
/// Threads: owner only.
class Values {
 public:
  /// outer: of the program around a nested one, or null.
  Values(const Position* position, StorageTable* table, GraphWriter* writer, Inputs* inputs, Values* outer)
      : position_(*position), table_(*table), writer_(*writer), inputs_(*inputs), outer_(outer) {}

  /// The value that holds the tensor's contents. Adds a view where no operator has made that geometry, and a constant
  /// where the memory comes from outside. Throws E0105.
  ir::ValueId lookUp(const at::Tensor& tensor);
  /// Where its memory lies; the segment has a base value. Throws E0105.
  Place placeOf(const at::Tensor& tensor);
  /// Did an operator on an accelerator leave it in the host's memory? Attention's kernels do, with the place in the
  /// random stream that their backward starts from.
  bool isHostResult(const at::Tensor& tensor) const;
  /// Of what a segment's base value is the memory of: a value of this geometry that is known already, or kNone.
  ir::ValueId findView(const Segment& segment, const Type& type, int64_t offset) const;
  /// The base value whose memory the tensor looks at; kNone where it is not known.
  ir::ValueId contentsOf(const at::Tensor& tensor) const;
  /// Has the tensor been an input, an operand or a result?
  bool knows(const at::Tensor& tensor) const { return table_.knows(tensor); }
  /// May its contents differ between micro-batches?
  bool mayVary(const at::Tensor& tensor) const;
  /// All the memory that one base value describes and the tensor lies in. Throws E0105.
  at::Tensor memoryOf(const at::Tensor& tensor);
  /// Memory that no operator wrote takes what lies there now, because something is about to read it.
  void adoptContents(const at::Tensor& tensor);

 private:
  const Position& position_;
  StorageTable& table_;
  GraphWriter& writer_;
  Inputs& inputs_;
  Values* outer_;
};

}  // namespace abele::capture
