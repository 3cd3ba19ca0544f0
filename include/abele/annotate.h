// For users of the library: what a forward says about itself. All of it is free, and does nothing, when forward runs
// natively, so annotated code stays ordinary LibTorch code. Annotations never change results, only placement.
#pragma once

#include <string>

#include "abele/export.h"

namespace at {
class Tensor;
}

namespace abele {

/// Makes a block active until another one begins. Re-using user_id enters the same block again; "" takes the next
/// automatic id ("0", "1", ...). ipu_id: index of the device among the model's, -1 if not given.
ABELE_API void beginBlock(const std::string& user_id = "", int ipu_id = -1);

/// Under PipelinedExecution::recompute: backward keeps this value rather than making it again. Returns the tensor.
ABELE_API at::Tensor recomputationCheckpoint(const at::Tensor& tensor);

/// A block for a scope. Leaving it leaves every block (there is no stack): an operation outside blocks after that is
/// E0302.
class ABELE_API Block {
 public:
  explicit Block(const std::string& user_id = "", int ipu_id = -1);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  /// As beginBlock.
  static void start(const std::string& user_id = "", int ipu_id = -1);
  /// Automatic ids start at "0" again. Call it first in a forward that uses them.
  static void useAutoId();
};

/// Prefix for the names of operations in reports and errors; nests.
class ABELE_API NameScope {
 public:
  explicit NameScope(const std::string& name);
  ~NameScope();
  NameScope(const NameScope&) = delete;
  NameScope& operator=(const NameScope&) = delete;
};

enum class Reduction { kNone, kMean, kSum };
/// Reduces `loss` and marks the result as the value that training starts backward from. A training model marks exactly
/// one (E0102, E0103); a marked loss that feeds another one is an ordinary value.
ABELE_API at::Tensor identityLoss(const at::Tensor& loss, Reduction reduction = Reduction::kMean);

/// True only inside a forward that is being captured for devices.
ABELE_API bool isRunningOnDevice();

}  // namespace abele
