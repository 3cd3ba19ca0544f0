// Proves that a compiled program computes the bits of eager PyTorch on given batches, value by value. If not, names the
// first operator that differs. Used by bind/ and model/verify.cc. Next: verify.cc (runs both), verify_captures.cc.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "session/session.h"

namespace abele::verification {

/// The first difference between eager and compiled, in the order of eager's computation.
struct Difference {
  enum class Kind {
    kValue,     // the devices computed another value than eager
    kCapture,   // eager computes another value when it is not captured
    kConstant,  // a constant of the program differs for this micro-batch
    kProgram,   // forward did something else for this micro-batch than at compile time
    kGradient,  // the sum of a parameter's gradients
    kWeight,    // a parameter or buffer after the step
  };
  Kind kind = Kind::kValue;
  std::string op;     // "aten::mul.Tensor"; for weights and gradients their name
  std::string line;   // "train.py:88"; empty: unknown
  std::string scope;  // "encoder/layer.3"
  ir::Direction direction = ir::Direction::kForward;
  int32_t stage = -1;  // -1: no stage runs it
  int64_t batch = 0;
  int64_t micro_batch = 0;       // within the batch
  std::vector<int64_t> element;  // index of the first element that differs
  int64_t elements = 0, of = 0;  // number of elements that differ, and of all elements
  std::string type;              // type of the value, "f32[4,8]"
  std::string found, expected;   // the two values, or actions of the program. Empty if a second run did not show them
  std::string reason;            // in words
};

struct Verification {
  int64_t batches = 0;
  int64_t micro_batches = 0;  // over all batches
  int64_t values = 0;         // number of comparisons: operators, gradients, weights, buffers and results
  std::optional<Difference> difference;
  std::vector<std::string> notes;  // comparisons that were left out, and why
  bool equal() const { return !difference; }
  /// The result for people.
  std::string text() const;
};
const char* kindName(Difference::Kind kind);

/// Applies gradients, by index in Session::Program::model, to the weights as an optimizer does.
using Update = std::function<void(const std::vector<at::Tensor>& gradients)>;

struct VerifyRequest {
  compile::ProgramOptions options;
  session::Session::Program program;
  compile::OptimizerSpec optimizer;
  /// Plain forward of a micro-batch, with the same results as program.forward.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> eager;
  /// Eager's optimizer, without state. Empty: torchUpdate.
  std::function<Update()> make_update;
};

/// Runs each batch eagerly, captures it once more, and runs it on the devices. Eager and devices start from the model's
/// present weights, from an optimizer without state and from the same random numbers. Afterwards the model, its
/// gradients and the random state are as before. Results of one batch are compared before the next batch runs.
/// Memory: a hash per value and micro-batch, and eager's values up to 256 MiB. If a value beyond that differs,
/// everything runs again to show its numbers.
/// On accelerators eager runs on the first one, and the model is there meanwhile.
/// Throws: the errors of compile() and run(); E0702 for options without an eager counterpart (replicas, several
/// processes, stochastic rounding, stages on the CPU among accelerators); E0708 without batches.
Verification verify(const VerifyRequest& request, const std::vector<std::vector<at::Tensor>>& batches);

/// The update of a torch.optim optimizer as a sequence of torch's operators. Null for rules that torch lacks.
Update torchUpdate(const compile::OptimizerSpec& optimizer, const std::vector<capture::ModelTensor>& model);

// verify_captures.cc
/// Position in graph.nodes where two captures of one program diverge, or past the last node. Nothing: they are equal.
struct Parting {
  int64_t position = 0;
  Difference difference;
};
/// constants: of each capture, by external. Undefined ones are not compared.
std::optional<Parting> compareCaptures(const ir::Graph& compiled, const std::vector<at::Tensor>& compiled_constants,
                                       const ir::Graph& now, const std::vector<at::Tensor>& constants);
/// Fills operator, line, scope, direction and stage. lowered: the same program after the passes.
void describeNode(const ir::Node& node, const ir::Graph& lowered, Difference& difference);
/// Fills element, counts, type, found and expected from two tensors of the same type.
void compareElements(const at::Tensor& found, const at::Tensor& expected, Difference& difference);
/// Returns true if both have the same type and the same bits.
bool isSame(const at::Tensor& a, const at::Tensor& b);
/// Hash of type and contents, in the order of the elements. For a tensor on a device: computed on the current stream,
/// and complete on return.
uint64_t fingerprint(const at::Tensor& tensor);
/// A copy in the host's memory, in the layout that fingerprint() reads.
at::Tensor hostCopy(const at::Tensor& tensor);

}  // namespace abele::verification
