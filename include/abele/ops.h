// For users of the library: operators for use inside a forward, in addition to ATen's. They also run outside of a
// capture. Next: custom_op.h (operators of your own). Source: spec annotations.md, sections 4, 6, 7 and 8.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "abele/enums.h"
#include "abele/export.h"

namespace at {
class Tensor;
}

namespace abele::ops {

using Tensors = std::vector<at::Tensor>;

/// Returns a copy of the tensor. The gradient passes through unchanged.
ABELE_API at::Tensor nop(const at::Tensor& tensor);

/// How printTensor writes.
struct ABELE_API PrintFormat {
  bool print_gradient = true;
  int64_t summarise_threshold = 1000;  // larger tensors show only edge_items at both ends; 0: never
  int64_t edge_items = 3;
  int64_t max_line_width = 80;        // 0: lines are never broken
  int64_t digits = 4;                 // significant digits; 0: numbers are not aligned
  std::string float_format = "auto";  // auto, fixed, scientific, none
  std::string separator = ", ";
  std::string open_bracket = "(";
  std::string close_bracket = ")";
};
/// Returns a copy of the tensor and prints it on stderr each time it is computed: once per micro-batch. Prints its
/// gradient under "<title>_gradient". Throws E0702 for an unknown float_format.
ABELE_API at::Tensor printTensor(const at::Tensor& tensor, const std::string& title = "",
                                 const PrintFormat& format = {});
/// The text that printTensor prints.
ABELE_API std::string printedText(const at::Tensor& tensor, const std::string& title, const PrintFormat& format);

/// Returns elements start, start + step, ... < start + size along dim. start: an integer tensor of one element. Inside
/// a capture a window that runs past the end wraps around; outside it ends there, as in torch. Throws E0708 if size <=
/// 0, step < 1, or start is not an integer of one element; inside a capture also if size does not divide the length of
/// dim.
ABELE_API at::Tensor dynamicSlice(const at::Tensor& tensor, int64_t dim, const at::Tensor& start, int64_t size,
                                  int64_t step);
/// Does what dynamicSlice does inside a capture, for any size.
ABELE_API at::Tensor sliceAt(const at::Tensor& tensor, int64_t dim, const at::Tensor& start, int64_t size,
                             int64_t step);
/// Returns a copy of input with src written at start along dim. Throws E0708 if ranks or element types differ, or if
/// size <= 0.
ABELE_API at::Tensor dynamicUpdate(const at::Tensor& input, const at::Tensor& src, int64_t dim, const at::Tensor& start,
                                   int64_t size);

/// torch.matmul in `factor` pieces along the rows of lhs, the shared dimension or the columns of rhs. keep_precision:
/// float16 sums over the shared dimension are added in float32. kDisabled ignores factor. Throws E0708 if factor does
/// not divide the dimension.
ABELE_API at::Tensor serializedMatMul(const at::Tensor& lhs, const at::Tensor& rhs, MatMulSerializationMode mode,
                                      int64_t factor = 0, bool keep_precision = false);

/// Farthest point sampling. src: [P, F]; ptr: boundaries of the batches. Returns int32 indices into src, batches
/// concatenated. Throws E0708.
ABELE_API at::Tensor fps(const at::Tensor& src, const std::vector<int64_t>& ptr, double ratio = 0.5,
                         bool random_start = false);
/// Returns for each row of x the index (int32) of the nearest row of y in the same batch. batch: sorted ids, one per
/// row.
/// Throws E0708.
ABELE_API at::Tensor nearest(const at::Tensor& x, const at::Tensor& y);
/// If a batch is undefined, all its rows are in batch 0.
ABELE_API at::Tensor nearest(const at::Tensor& x, const at::Tensor& y, const at::Tensor& batch_x,
                             const at::Tensor& batch_y);

/// CTC prefix beam search over log-probabilities [T, N, C]. Returns path log-probabilities [N, top_paths], path lengths
/// (int32, [N, top_paths]) and classes (int32, [N, top_paths, T]). Throws E0708.
ABELE_API std::tuple<at::Tensor, at::Tensor, at::Tensor> ctcBeamSearchDecoder(const at::Tensor& probs,
                                                                              const at::Tensor& lengths,
                                                                              int64_t blank = 0,
                                                                              int64_t beam_width = 100,
                                                                              int64_t top_paths = 1);

using Body = std::function<Tensors(Tensors)>;
/// Runs body `count` times: the first iteration gets `inputs`, each later one the results before it. A capture traces
/// body once; body may read and write outer tensors. Inference only. Inputs are copied. Throws E0708 if body returns
/// other shapes or types than it takes; E0710 in training and inside another loop.
ABELE_API Tensors forLoop(int64_t count, const Body& body, const Tensors& inputs, void* mode_object = nullptr);
/// Returns the results of one of two branches. Each run chooses the branch by condition, a bool of one element. A
/// capture traces both once. Throws E0708 if the branches return different numbers of tensors or of elements; E0710 in
/// training.
ABELE_API Tensors cond(const at::Tensor& condition, const Body& then_body, const Tensors& then_inputs,
                       const Body& else_body, const Tensors& else_inputs, void* mode_object = nullptr);

/// A host function in the middle of a captured program. It is called with the values of each micro-batch. Inference
/// only, unless is_pure. A program with a host function cannot be saved.
class ABELE_API HostCall {
 public:
  /// is_pure: the results depend on the inputs alone. Such a function also runs during the capture, on the captured
  /// values, and in training; the caller provides its gradient.
  explicit HostCall(Body function, std::string id, bool is_pure = false);
  ~HostCall();
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;
  /// A capture calls the function once, unrecorded, to learn its results: with zeros, unless is_pure.
  Tensors operator()(const Tensors& inputs);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace abele::ops
