// Annotations and questions of a running forward: blocks, names, losses. No-ops outside a capture. Used by api/,
// session/ and bind/.
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

/// The error that torch throws on a request for the address of locked memory, which holds values of the captured
/// program.
inline constexpr char kLockedRead[] = "E0101 data-dependent: memory of a captured value is read past torch's operators";

/// True only on a thread that is inside capture()'s forward.
bool isCapturing();

/// Makes a block active. Re-using a user_id enters the same block again. Requires: user_id is not empty; callers
/// without one use nextAutoBlockId. devices: none is given, one, or several that share the work of the block. Throws
/// E0710.
void beginBlock(const std::string& user_id, const std::vector<int32_t>& devices);
/// Leaves every block, because blocks form no stack.
void endBlock();
/// The user_id of the active block; "" outside of all blocks.
std::string currentBlock();
/// Returns "0", "1", ... in turn; resetAutoBlockId starts again at "0".
std::string nextAutoBlockId();
void resetAutoBlockId();

/// Opens a name scope: a NameScope or, in C++, a module. Scopes nest.
void pushScope(const std::string& name);
void popScope();
/// Sets a function that returns the modules that are running, outermost first. The capture on this thread calls it at
/// every operator. May be empty.
void setModules(std::function<std::vector<std::string>()> modules);

/// Marks a loss. A loss that feeds a later one becomes an ordinary value (spec annotations.md section 3).
void markLoss(const at::Tensor& loss);

/// Call this before the program reads the tensor's memory outside ATen (numpy(), tolist()). Returns the tensor to read:
/// this one, or a read-only substitute. Throws E0101 if its value may differ between micro-batches.
at::Tensor readValue(const at::Tensor& tensor, const std::string& reader);

/// Whether the tensor's value may differ between micro-batches. False outside a capture.
bool mayVary(const at::Tensor& tensor);

/// Does not refuse reads until allowReads(false), because they only check arguments and do not change what the program
/// does. Nests.
void allowReads(bool allow);

/// Id of the value that the tensor holds in the program being captured; -1 for a host tensor.
int64_t valueId(const at::Tensor& tensor);

/// The random numbers that an operator draws from its generator.
struct BodyDraws {
  int64_t draws = 0;  // 32-bit draws, without those of `normals`
  Normals normals;    // before: unused; spare: draws of the operator before the end of the pair whose spare it leaves
  bool vary = false;  // the number depends on values; draws and normals are then upper bounds
};
/// For operators that run a body: reports to the capture what the operator has drawn.
void tellDraws(const BodyDraws& draws);

/// Records that forward replaced a buffer of the model by `value`, which the buffer holds from the next micro-batch on.
/// keeps_strides: the next micro-batch reads it with the buffer's strides, and not with the value's. Requires: a
/// capture; equal shapes and types. Throws E0108 if the buffer shares its memory with another tensor. If results depend
/// on kept strides, the capture ends in E0108.
void replaceBuffer(const at::Tensor& buffer, const at::Tensor& value, bool keeps_strides);

/// Whether an operator reads what one buffer held at first after another one has written into the other buffer's
/// memory.
bool isReadAfterWrite(const at::Tensor& read, const at::Tensor& written);

/// Backward keeps this value of forward even where recomputation would drop it.
void keepValue(const at::Tensor& tensor);
/// False outside a capture.
bool isTraining();
/// "train.py:88": the line of the program that is being captured; empty if it is not known.
std::string currentLine();
/// A number that differs for each capture, of the capture on this thread.
int64_t captureNumber();
/// Runs a function without recording it.
void outsideCapture(const std::function<void()>& function);

/// stop - start of two tensors of one integer, if the program computes stop from start by adding constants; else
/// nothing. Requires: a capture.
std::optional<int64_t> constantDifference(const at::Tensor& start, const at::Tensor& stop);

/// Number of recorded operators whose name contains `part`; 0 outside a capture.
int64_t numOperators(const std::string& part);
/// Number of operators that read the tensor's value or a view of it.
int64_t numReaders(const at::Tensor& tensor);
/// Whether the tensor has been an input, an operand or a result of the program being captured.
bool isCaptured(const at::Tensor& tensor);
/// Whether the tensor is one of the program's inputs, unchanged.
bool isArgument(const at::Tensor& tensor);

}  // namespace abele::capture
