// Runs one micro-batch of a torch program and records it as an ir::Graph. Used by compile/. Next: annotate.h,
// dispatch_mode.cc.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>

#include "ir/graph.h"

namespace at {
class Tensor;
}  // namespace at
namespace c10 {
struct StorageImpl;
}

namespace abele::capture {

/// Name of the constant that backward starts from.
inline constexpr char kLossGradient[] = "loss_gradient";

/// A parameter or buffer of the model, in the model's own order. Tied ones appear once, with their first name.
struct ModelTensor {
  std::string name;
  at::Tensor* tensor = nullptr;  // the model's own
  bool is_parameter = false;
};

struct Request {
  /// The program: takes the micro-batch tensors, returns the flattened result. Called once, on the calling thread.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> forward;
  std::vector<at::Tensor> arguments;  // one micro-batch
  std::vector<ModelTensor> model;
  bool training = false;
  /// Gradient of the loss that backward starts from, e.g. 1 / gradient accumulation.
  double loss_gradient = 1.0;
  /// Where the program computes: arguments are copied there, the model's tensors are there. Operators that make tensors
  /// of nothing on the host make them there.
  c10::Device device{c10::DeviceType::CPU};
  /// Source of random numbers while recording, of that device; cloned, so that the caller's is unchanged.
  at::Generator* generator = nullptr;
  /// Generators of the program's own that are there before it runs: it may draw from these.
  std::vector<at::Generator> generators;
  /// The user's current line ("train.py:88"); called for every recorded op. May be empty.
  std::function<std::string()> source_location;
  /// A dispatch mode needs an object to stand for it; Python passes one of its own, C++ leaves it null.
  void* mode_object = nullptr;
  /// Backward nodes say to which forward node they belong (ir::Node::forward), not only to which block.
  bool attributes_nodes = false;
  /// torch::equal of values that may differ is answered as this micro-batch answers it, and every later one must give
  /// the same answer (E0101 when it runs). Otherwise it is E0101 at once.
  bool checks_comparisons = false;
  /// What forward reads of values that may differ is taken as this micro-batch has it, and every later one must have
  /// the same (E0101 when it runs). Otherwise it is E0101 at once.
  bool trusts_reads = false;
  /// Group normalisations take channels that lie `groups` apart for a group, instead of neighbours.
  bool strides_groups = false;
  /// How the program calls the tensor of this storage ("encoder.cache"); "" where it does not know. May be empty.
  std::function<std::string(const c10::StorageImpl*)> name_of;
  /// Told after every operator how many bytes its operands and results have. May be empty.
  std::function<void(int64_t bytes)> touched;
  /// Told of every tensor that a recorded operator has computed: the value that it is, or the new value of the memory
  /// that it was written into. May be empty.
  std::function<void(ir::ValueId value, const at::Tensor& computed)> made;
  /// Told of a tensor of the model, by its index, before the operator of forward is recorded that reads it. Returns the
  /// scope of the module that has the tensor ("encoder/0"), or "". The operator's scope ends in the first that is not
  /// empty. May be empty.
  std::function<std::string(int32_t index)> reads_model;
  /// A gradient is recorded when it is complete, and its memory let go of: all of them together are as large as a model
  /// that fits nowhere.
  bool drops_gradients = false;
  /// Inside another capture, which does not see what this one runs. Then the tensors that became constants are kept in
  /// Recording::constant_sources.
  bool is_nested = false;
  /// Recording::prints and varies are kept, for same_program.h.
  bool prints_contents = false;
};

/// A hash of the contents of a tensor, and its first elements as text.
struct ContentsPrint {
  uint64_t hash = 0;
  std::string text;
};

/// A tensor from outside that became a constant.
struct OutsideTensor {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  uint32_t version = 0;  // torch counts what is written into it
  std::string line;      // that met it first
};

/// The numbers of a generator of the program's own: what a micro-batch draws, in order, behind what the one before
/// drew.
struct OwnStream {
  at::Generator generator;
  at::Generator start;    // a copy of it, from before its first draw
  bool restarts = false;  // forward seeds it with a number: each micro-batch draws from `start` on
  int64_t draws = 0;      // of a micro-batch, as of ir::Graph::random_draws
  Normals normals;
};

struct Recording {
  ir::Graph graph;  // form kCaptured
  /// Generators of the program's own; nodes name them by a number from 1 on (Arg::Kind::kGenerator).
  std::vector<OwnStream> own_streams;
  /// Contents of Graph::externals of kind kConstant, by external index (undefined elsewhere). An external's type is its
  /// tensor's, or the flat extent of a tensor with gaps: either way
  /// tensor.as_strided(type.sizes, type.strides, tensor.storage_offset()) is the memory that belongs to it.
  std::vector<at::Tensor> constants;
  std::vector<at::Tensor> constant_sources;  // the tensors themselves, of a nested capture
  /// Per flattened result: its index among kResult outputs, or kNone when it is a host tensor returned as it is.
  std::vector<int32_t> result_output;
  /// By Request::model, what is added to each .grad, in order; where Request::made is set.
  std::vector<std::vector<at::Tensor>> gradients;
  std::vector<at::Tensor> host_results;  // for those, in their order
  /// Arguments that forward writes in place: argument index and the base value that it has at the end.
  std::vector<std::pair<int, ir::ValueId>> written_arguments;
  /// Tensors from outside, neither parameters nor buffers, that forward writes: their names, or the lines that met
  /// them.
  std::vector<std::string> written_constants;
  /// Of Graph::externals of kind kConstant, those that outlive the capture. Empty in a nested capture.
  std::vector<OutsideTensor> outside;
  /// The lines of operators whose results the program still holds though it does not return them, each with a name of
  /// one: "train.py:88 (encoder.cache), and at train.py:90 (maps[0])". Where name_of knows none, the line of the last
  /// alone, because autograd may hold the others. Only of contents that may differ between micro-batches. Empty in a
  /// nested capture.
  std::string held_result;
  /// The first operator that draws after torch's default generator was seeded, or given a state from elsewhere: the
  /// program, or another thread, did so. "": none does. Empty on accelerators, where it is E0106 at once.
  std::string seeded_at;
  std::vector<ir::ValueId> kept;  // base values that keepValue() named
  std::vector<bool> varies = {};  // by base value: may it differ between micro-batches?
  /// The contents of values that may not, where an operator reads them.
  std::unordered_map<ir::ValueId, ContentsPrint> prints = {};
  /// The values of this one micro-batch: what forward returned (detached), for tests and for output shapes.
  std::vector<at::Tensor> results;
};

/// Captures forward, and in training loss and backward. On return or throw the model's tensors, the states of
/// generators and torch's thread-local state are as before.
/// Throws E0101..E0108; exceptions of forward pass through unchanged after the state was put back.
/// Threads: one capture per thread at a time. Source: docs/architecture.md, capture.
Recording capture(const Request& request);

}  // namespace abele::capture
