// Proves that a compiled program gives the bits of eager PyTorch on given batches, value by value, or names the first
// operator where it does not. Used by bind/ and model/verify.cc. Next: verify.cc (runs both), verify_captures.cc.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "session/session.h"

namespace abele::host {

/// Where eager and compiled part first, in the order in which eager computes.
struct Difference {
  enum class Kind {
    kValue,     // the devices computed another value than eager
    kCapture,   // eager computes another value when nobody captures
    kConstant,  // a constant of the program is another one for this micro-batch
    kProgram,   // forward did something else for this micro-batch than when it was compiled
    kGradient,  // the sum of a parameter's gradients
    kWeight,    // a parameter or buffer after the step
  };
  Kind kind = Kind::kValue;
  std::string op;     // "aten::mul.Tensor"; for weights and gradients their name
  std::string line;   // "train.py:88"; empty: unknown
  std::string scope;  // "encoder/layer.3"
  ir::Direction direction = ir::Direction::kForward;
  int32_t stage = -1;  // -1: no stage has it
  int64_t batch = 0;
  int64_t micro_batch = 0;       // within the batch
  std::vector<int64_t> element;  // the first one that differs
  int64_t elements = 0, of = 0;  // that differ, and of how many
  std::string type;              // of the value, "f32[4,8]"
  std::string found, expected;   // there; or what a program did. Empty where it could not be seen again
  std::string reason;            // in words
};

struct Verification {
  int64_t batches = 0;
  int64_t micro_batches = 0;  // of all of them
  int64_t values = 0;         // compared: of operators, gradients, weights, buffers and results
  std::optional<Difference> difference;
  std::vector<std::string> notes;  // what was not compared, and why
  bool equal() const { return !difference; }
  /// For people.
  std::string text() const;
};
const char* kindName(Difference::Kind kind);

/// Adds gradients, by index in Session::Program::model, into the weights as an optimizer does.
using Update = std::function<void(const std::vector<at::Tensor>& gradients)>;

struct VerifyRequest {
  ProgramOptions options;
  Session::Program program;
  OptimizerSpec optimizer;
  /// Plain forward of a micro-batch, with the results that program.forward gives.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> eager;
  /// Eager's optimizer, without state. Empty: torchUpdate.
  std::function<Update()> make_update;
};

/// Runs each batch eagerly, captured once more, and on the devices, both from the model's present weights, from an
/// optimizer without state and from the same random numbers. Afterwards the model, its gradients and the random state
/// are as before; results of one batch are compared before the next one runs.
/// Memory: a hash per value and micro-batch, and eager's values up to 256 MiB; beyond that, all is run again to see the
/// numbers of the one that differs.
/// On accelerators eager runs on the first one, and the model is there meanwhile.
/// Throws: what compile() and run() throw; E0702 for replicas, several processes, stochastic rounding and stages on the
/// CPU among accelerators, which have no eager counterpart; E0708 without batches.
Verification verify(const VerifyRequest& request, const std::vector<std::vector<at::Tensor>>& batches);

/// The update of torch.optim's optimizers as a sequence of torch's operators. Null for rules that torch has not.
Update torchUpdate(const OptimizerSpec& optimizer, const std::vector<capture::ModelTensor>& model);

// verify_captures.cc
/// Position among graph.nodes where two captures of one program part, or past the last node; nothing: they do not.
struct Parting {
  int64_t position = 0;
  Difference difference;
};
/// constants: by external, of either; undefined ones are not compared.
std::optional<Parting> compareCaptures(const ir::Graph& compiled, const std::vector<at::Tensor>& compiled_constants,
                                       const ir::Graph& now, const std::vector<at::Tensor>& constants);
/// Fills operator, line, scope, direction and stage. lowered: the same program after the passes.
void describeNode(const ir::Node& node, const ir::Graph& lowered, Difference& difference);
/// Fills element, counts, type, found and expected from two tensors of the same type.
void compareElements(const at::Tensor& found, const at::Tensor& expected, Difference& difference);
/// Do they have the same type and the same bits?
bool isSame(const at::Tensor& a, const at::Tensor& b);
/// Of type and contents, in the order of the elements. Of a tensor on a device: on the current stream, and complete.
uint64_t fingerprint(const at::Tensor& tensor);
/// In the host's memory, as fingerprint() reads it.
at::Tensor hostCopy(const at::Tensor& tensor);

}  // namespace abele::host
