// What a running forward says about itself: blocks, names, losses. No-ops outside a capture. Used by api/, session/ and
// bind/.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/normals.h"

namespace at {
class Tensor;
}

namespace abele::capture {

/// What torch throws to whoever asks for the address of memory that holds values of the program being captured.
inline constexpr char kLockedRead[] = "E0101 data-dependent: memory of a captured value is read past torch's operators";

/// True only on a thread that is inside capture()'s forward.
bool isCapturing();

/// Makes a block active. Re-using a user_id enters the same block again. Empty user_id: the caller numbers it first
/// (nextAutoBlockId). devices: none is given, one, or several that share the work of the block. Throws E0710.
void beginBlock(const std::string& user_id, const std::vector<int32_t>& devices);
/// Leaves every block: there is no stack.
void endBlock();
/// The user_id of the active block; "" outside of all.
std::string currentBlock();
/// "0", "1", ...; resetAutoBlockId starts again at "0".
std::string nextAutoBlockId();
void resetAutoBlockId();

/// NameScope or, in C++, a module; nests.
void pushScope(const std::string& name);
void popScope();
/// Names the modules that the program is inside of, from the outermost on: asked for at every operator of the capture
/// on this thread. May be empty.
void setModules(std::function<std::vector<std::string>()> modules);

/// Marks a loss. See spec annotations.md section 3: a loss that feeds a later one is demoted.
void markLoss(const at::Tensor& loss);

/// Says that the program reads the tensor's memory outside ATen (numpy(), tolist()). Returns the tensor, or what stands
/// for it and is only read. Throws E0101 when its value may differ between micro-batches.
at::Tensor readValue(const at::Tensor& tensor, const std::string& reader);

/// May the tensor's value differ between micro-batches? False outside a capture.
bool mayVary(const at::Tensor& tensor);

/// Values read until allowReads(false) only check arguments and do not steer the program: they are not refused. Nests.
void allowReads(bool allow);

/// Number of the value that the tensor holds in the program being captured; -1 when it is a host tensor.
int64_t valueId(const at::Tensor& tensor);

/// What an operator draws of its generator.
struct BodyDraws {
  int64_t draws = 0;  // 32-bit draws but those of `normals`
  Normals normals;    // before: unused; spare: draws of the operator before the end of the pair whose spare it leaves
  bool vary = false;  // values decide how many; then these are the most
};
/// An operator that runs bodies of its own says it while the program is being captured, when it has drawn.
void tellDraws(const BodyDraws& draws);

/// Forward has put `value` in the place of a buffer of the model: the buffer holds it from the next micro-batch on.
/// Requires: a capture; both have one shape and type. Throws E0108 for a buffer whose memory is another tensor's, too.
void replaceBuffer(const at::Tensor& buffer, const at::Tensor& value);

/// Backward shall keep this value of forward rather than make it again, where it would.
void keepValue(const at::Tensor& tensor);
/// False outside a capture.
bool isTraining();
/// "train.py:88", of the program that is being captured; empty where nobody knows.
std::string currentLine();
/// Of the capture on this thread: another one for each.
int64_t captureNumber();
/// Runs a function as if there were no capture.
void outsideCapture(const std::function<void()>& function);

/// stop - start of two integers of one element, when the program adds only constants to come from one to the other.
/// Requires: a capture.
std::optional<int64_t> constantDifference(const at::Tensor& start, const at::Tensor& stop);

/// Operators recorded so far whose name contains `part`; 0 outside a capture.
int64_t numOperators(const std::string& part);
/// Operators that read the value which the tensor holds, or a view of it.
int64_t numReaders(const at::Tensor& tensor);
/// Has the tensor been an input, an operand or a result of the program being captured?
bool isCaptured(const at::Tensor& tensor);
/// Is it one of the program's inputs, unchanged?
bool isArgument(const at::Tensor& tensor);

}  // namespace abele::capture
