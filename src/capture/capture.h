// Runs one micro-batch of a torch program and records it as an ir::Graph. Used by compile/. Next: annotate.h,
// dispatch_mode.cc.
#pragma once

#include <functional>
#include <optional>
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

/// Name of the constant with which backward starts: the gradient of the loss.
inline constexpr char kLossGradient[] = "loss_gradient";

/// A parameter or buffer of the model, in the model's own order. Tied ones appear once, with their first name.
struct ModelTensor {
  std::string name;
  at::Tensor* tensor = nullptr;  // the model's own
  bool is_parameter = false;
};

struct Recording;

struct Request {
  /// The program: takes the micro-batch tensors, returns the flattened result. Called once, on the calling thread.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> forward;
  std::vector<at::Tensor> arguments;  // one micro-batch
  std::vector<ModelTensor> model;
  bool training = false;
  /// Gradient of the loss with which backward starts, e.g. 1 / gradient accumulation.
  double loss_gradient = 1.0;
  /// The device of the capture. Arguments are copied to it, and the model's tensors are on it. Operators that would
  /// make new tensors on the host make them on this device.
  c10::Device device{c10::DeviceType::CPU};
  /// The device's source of random numbers while recording. It is cloned, so the caller's generator does not change.
  at::Generator* generator = nullptr;
  /// The program's own generators that exist before it runs; it may draw from them.
  std::vector<at::Generator> generators;
  /// The user's current line ("train.py:88"); called for every recorded op. May be empty.
  std::function<std::string()> source_location;
  /// The Python object that represents the dispatch mode; null in C++.
  void* mode_object = nullptr;
  /// Whether backward nodes store their forward node (ir::Node::forward) and not only their block.
  bool attributes_nodes = false;
  /// Whether forward may use torch::equal on values that may differ. The program keeps the result of this micro-batch,
  /// and a later micro-batch with another result throws E0101. Otherwise the call throws E0101 at once.
  bool checks_comparisons = false;
  /// Whether forward may read values that may differ. The program keeps the value of this micro-batch, and a later
  /// micro-batch with another value throws E0101. Otherwise the read throws E0101 at once.
  bool trusts_reads = false;
  /// Group normalisations put channels that are `groups` apart into one group, not neighbouring channels.
  bool strides_groups = false;
  /// The program's name for the tensor of this storage ("encoder.cache"); "" if it has none. May be empty.
  std::function<std::string(const c10::StorageImpl*)> name_of;
  /// Frees tensors that the program does not reach any more. Called if results of forward are alive at the end. May be
  /// empty.
  std::function<void()> free_garbage;
  /// Called after every operator with the number of bytes of its operands and results. May be empty.
  std::function<void(int64_t bytes)> touched;
  /// Called with every tensor that a recorded operator has computed, and its value: a new one, or the new value of the
  /// memory that was written. May be empty.
  std::function<void(ir::ValueId value, const at::Tensor& computed)> made;
  /// Called with the index of a model tensor before an operator of forward that reads it is recorded. Returns the scope
  /// of the module that has the tensor ("encoder/0"), or "". The operator's scope ends with the first one that is not
  /// empty. May be empty.
  std::function<std::string(int32_t index)> reads_model;
  /// Records each gradient when it is complete and frees its memory, because all gradients of a large model together
  /// may not fit into memory.
  bool drops_gradients = false;
  /// Whether this capture runs inside another one, which does not record it. Recording::constant_sources then has the
  /// tensors that became constants.
  bool is_nested = false;
  /// Fills Recording::prints and varies, for same_program.h.
  bool prints_contents = false;
  /// An earlier capture of the same call. Operators at its places get its lines and scopes without asking for them, and
  /// backward of the same functions is left out, because it follows from forward.
  const Recording* earlier = nullptr;
};

/// A hash of the contents of a tensor, and its first elements as text.
struct ContentsPrint {
  uint64_t hash = 0;
  std::string text;
};

/// A tensor from outside that became a constant.
struct OutsideTensor {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  uint32_t version = 0;  // torch's count of writes into the tensor
  std::string line;      // the line that first used it
};

/// The random numbers of one of the program's own generators. A micro-batch's draws follow those of the micro-batch
/// before it.
struct OwnStream {
  at::Generator generator;
  at::Generator start;    // a copy of the generator from before its first draw
  bool restarts = false;  // forward seeds it with a number, so each micro-batch draws from `start` again
  int64_t draws = 0;      // in a micro-batch, as in ir::Graph::random_draws
  Normals normals;
};

struct Recording {
  ir::Graph graph;  // form kCaptured
  /// The program's own generators. Nodes refer to them by numbers from 1 on (Arg::Kind::kGenerator).
  std::vector<OwnStream> own_streams;
  /// Contents of Graph::externals of kind kConstant, by external index (undefined elsewhere). An external's type is its
  /// tensor's, or the flat extent of a tensor with gaps: in both cases
  /// tensor.as_strided(type.sizes, type.strides, tensor.storage_offset()) is the memory that belongs to it.
  std::vector<at::Tensor> constants;
  std::vector<at::Tensor> constant_sources;  // in a nested capture, the tensors themselves
  /// For each flattened result its index among the kResult outputs; kNone for a host tensor that is returned unchanged.
  std::vector<int32_t> result_output;
  /// For each tensor of Request::model the gradients added to its .grad, in order. Only if Request::made is set.
  std::vector<std::vector<at::Tensor>> gradients;
  std::vector<at::Tensor> host_results;  // the results with kNone, in order
  /// Arguments that forward writes in place: the index of each and its base value at the end.
  std::vector<std::pair<int, ir::ValueId>> written_arguments;
  /// Tensors from outside, neither parameters nor buffers, that forward writes: their names, or the lines that first
  /// used them.
  std::vector<std::string> written_constants;
  /// The Graph::externals of kind kConstant whose tensors outlive the capture. Empty in a nested capture.
  std::vector<OutsideTensor> outside;
  /// The lines of operators whose results the program still holds but does not return, each with the name of one
  /// result: "train.py:88 (encoder.cache), and at train.py:90 (maps[0])". If name_of has no name, only the last line,
  /// because autograd may hold the others. Leaves out results that cannot differ between micro-batches. Empty in a
  /// nested capture.
  std::string held_result;
  /// The first operator that draws after the program, or another thread, has seeded torch's default generator or set
  /// its state. "": no operator does. Empty on accelerators, where such a draw throws E0106 at once.
  std::string seeded_at;
  std::vector<ir::ValueId> kept;  // base values of the tensors passed to keepValue()
  std::vector<bool> varies = {};  // by base value: whether it may differ between micro-batches
  /// A hash of the functions of autograd that make gradients of the loss. Empty if some of them are the program's, or
  /// may call its code: then forward does not decide what backward does.
  std::optional<uint64_t> backward = {};
  bool lacks_backward = false;  // Request::earlier has the same backward
  /// The contents of the other values, if an operator reads them.
  std::unordered_map<ir::ValueId, ContentsPrint> prints = {};
  /// What forward returned in this micro-batch, detached; for tests and for output shapes.
  std::vector<at::Tensor> results;
};

/// Captures forward, and in training loss and backward. Restores the model's tensors, the states of generators and
/// torch's thread-local state, also if it throws. Throws E0101..E0108; exceptions of forward pass through unchanged.
/// Threads: one capture per thread at a time. Source: docs/architecture.md, capture.
Recording capture(const Request& request);

}  // namespace abele::capture
