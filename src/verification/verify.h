// Checks, value by value, whether a compiled program computes the bits of eager PyTorch on given batches. Finds the
// first operator that differs. Used by bind/ and model/verify.cc. Next: verify.cc (runs both), verify_captures.cc.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "abele/verify.h"
#include "session/session.h"

namespace abele::verification {

/// The values of Difference::kind.
inline constexpr const char *kValue = "value", *kCapture = "capture", *kConstant = "constant", *kProgram = "program",
                            *kGradient = "gradient", *kWeight = "weight";

/// Updates the weights as an optimizer does. gradients: by index in Session::Program::model.
using Update = std::function<void(const std::vector<at::Tensor>& gradients)>;

struct VerifyRequest {
  compile::ProgramOptions options;
  session::Session::Program program;
  compile::OptimizerSpec optimizer;
  /// Plain forward of a micro-batch, with the same results as program.forward.
  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> eager;
  /// Copies what eager's forward has put in the place of buffers into the model's tensors. Called after backward; may
  /// be empty.
  std::function<void()> after_eager = {};
  /// Eager's optimizer, without state. Empty: torchUpdate.
  std::function<Update()> make_update;
};

/// Runs each batch eagerly, captures it once more, and runs it on the devices. Eager and devices start from the model's
/// present weights, from an optimizer without state and from the same random numbers. Restores the model, its gradients
/// and the random state afterwards. Results of one batch are compared before the next batch runs.
/// Memory: a hash per value and micro-batch, and eager's values up to 256 MiB. If a value beyond that differs,
/// everything runs again to show its numbers.
/// On accelerators eager runs on the first one, to which the model is moved meanwhile.
/// Throws: the errors of compile() and run(); E0702 for options without an eager counterpart (replicas, several
/// processes, stochastic rounding, stages on the CPU among accelerators); E0708 without batches.
Verification verify(const VerifyRequest& request, const std::vector<std::vector<at::Tensor>>& batches);
/// The result for people: Verification::text.
std::string textOf(const Verification& verification);

/// The update of a torch.optim optimizer as a sequence of torch's operators. Null for optimizers that torch does not
/// have.
Update torchUpdate(const compile::OptimizerSpec& optimizer, const std::vector<capture::ModelTensor>& model);

// verify_captures.cc
/// Position in graph.nodes where two captures of one program diverge, or past the last node. Nothing: they are equal.
struct Parting {
  int64_t position = 0;
  Difference difference;
};
/// constants: the constants of each capture, by external. Undefined ones are not compared.
std::optional<Parting> compareCaptures(const ir::Graph& compiled, const std::vector<at::Tensor>& compiled_constants,
                                       const ir::Graph& now, const std::vector<at::Tensor>& constants);
/// A Difference with only its kind set.
inline Difference differenceOf(const std::string& kind) { return {.kind = kind, .direction = "forward"}; }
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
