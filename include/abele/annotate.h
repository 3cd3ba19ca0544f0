// For users of the library: annotations inside forward. They cost nothing and do nothing when forward runs
// natively, so annotated code stays ordinary LibTorch code. Annotations never change results, only placement.
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "abele/enums.h"
#include "abele/export.h"

namespace at {
class Tensor;
}

namespace abele {

/// Makes a block active until another one begins. Re-using user_id enters the same block again; "" takes the next
/// automatic id ("0", "1", ...). ipu_id: index of the device among the model's, -1 if not given.
/// line: of the program, here and below; messages, explain() and dumps name it for the operations that follow.
ABELE_API void beginBlock(const std::string& user_id = "", int ipu_id = -1,
                          const std::source_location& line = std::source_location::current());

/// Under PipelinedExecution::recompute: keep this value for backward instead of computing it again. Returns the tensor.
ABELE_API at::Tensor recomputationCheckpoint(const at::Tensor& tensor);

/// A block for a scope. Leaving it leaves every block (there is no stack): an operation outside blocks after that is
/// E0302.
class ABELE_API Block {
 public:
  explicit Block(const std::string& user_id = "", int ipu_id = -1,
                 const std::source_location& line = std::source_location::current());
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  /// As beginBlock.
  static void start(const std::string& user_id = "", int ipu_id = -1,
                    const std::source_location& line = std::source_location::current());
  /// Automatic ids start at "0" again. Call it first in a forward that uses them.
  static void useAutoId();

 private:
  std::string line_before_;
};

/// Sets a prefix for the names of operations in reports and errors, and their line; nests.
class ABELE_API NameScope {
 public:
  explicit NameScope(const std::string& name, const std::source_location& line = std::source_location::current());
  ~NameScope();
  NameScope(const NameScope&) = delete;
  NameScope& operator=(const NameScope&) = delete;

 private:
  std::string line_before_;
};

enum class Reduction { kNone, kMean, kSum };
/// Reduces `loss` and marks the result as the value from which training starts backward. A training model marks exactly
/// one (E0102, E0103); a marked loss that feeds another one is an ordinary value.
ABELE_API at::Tensor identityLoss(const at::Tensor& loss, Reduction reduction = Reduction::kMean);

/// Returns the tensor. The share of memory for the operation that made it, 0..1 (E0702), is a hint.
ABELE_API at::Tensor setAvailableMemory(const at::Tensor& tensor, double proportion);

/// Convolutions that form one multi-convolution. Its settings are hints: one value for all, or one for each
/// convolution.
///   abele::MultiConv().planType(abele::MultiConvPlanType::kSerial).run([&] { a = conv1(x); b = conv2(y); });
class ABELE_API MultiConv {
 public:
  MultiConv& availableMemoryProportions(std::vector<double> shares);
  MultiConv& partialsTypes(std::vector<FloatType> types);  // kFloat or kHalf (E0702)
  MultiConv& enableConvDithering(std::vector<bool> enable);
  MultiConv& planType(MultiConvPlanType type);
  MultiConv& perConvReservedTiles(int64_t tiles);
  MultiConv& cycleBackOff(double share);
  /// Inside a capture throws E0710: no convolution was made, a setting has another number of values than there are
  /// convolutions, or this is inside another MultiConv.
  void run(const std::function<void()>& body) const;

 private:
  MultiConv& note(const char* setting, size_t values);
  struct Setting {
    std::string name;
    size_t values = 1;
  };
  std::vector<Setting> settings_;
};

/// True only inside a forward that is being captured for devices.
ABELE_API bool isRunningOnDevice();

}  // namespace abele
