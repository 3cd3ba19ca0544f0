// For users of the library: annotations inside forward. They cost nothing and do nothing when forward runs
// natively, so annotated code stays ordinary LibTorch code. Annotations never change results, only placement.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "abele/enums.h"
#include "abele/export.h"

namespace at {
class Tensor;
}

namespace abele {

/// Where a block runs: a device, as an index among the model's devices, or several devices that share its work
/// (docs/tensor_parallel.md). -1 and an empty list: not given. Source: PopTorch's ipu_id; the list is ours.
class DeviceList {
 public:
  DeviceList() = default;
  DeviceList(int device) {
    if (device >= 0) devices_ = {device};
  }
  DeviceList(std::initializer_list<int> devices) : devices_(devices) {}
  explicit DeviceList(std::vector<int> devices) : devices_(std::move(devices)) {}
  const std::vector<int>& devices() const { return devices_; }
  bool operator==(const DeviceList&) const = default;

 private:
  std::vector<int> devices_;
};

/// Starts a block, which stays active until the next one starts. The same user_id enters the same block again; "" takes
/// the next automatic id ("0", "1", ...). In a capture throws E0710 for devices below 0 and for a device that is listed
/// twice.
/// line, here and below: where the following operations are in the program; messages, explain() and dumps show it.
ABELE_API void beginBlock(const std::string& user_id = "", const DeviceList& ipu_id = {},
                          const std::source_location& line = std::source_location::current());

/// Under PipelinedExecution::recompute: keep this value for backward instead of computing it again. Returns the tensor.
ABELE_API at::Tensor recomputationCheckpoint(const at::Tensor& tensor);

/// A block for a scope. Leaving the scope ends every block, because blocks form no stack. An operation after
/// that, outside of all blocks, throws E0302.
class ABELE_API Block {
 public:
  explicit Block(const std::string& user_id = "", const DeviceList& ipu_id = {},
                 const std::source_location& line = std::source_location::current());
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  /// As beginBlock.
  static void start(const std::string& user_id = "", const DeviceList& ipu_id = {},
                    const std::source_location& line = std::source_location::current());
  /// Restarts automatic ids at "0". If forward uses automatic ids, call this first in it.
  static void useAutoId();

 private:
  std::string line_before_;
};

/// Adds a prefix to the names of operations in reports and errors, and sets their line. Scopes nest.
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
/// Reduces `loss` and marks the result as the start of backward. A training model marks exactly one loss (E0102,
/// E0103). A marked loss that feeds another marked loss is an ordinary value.
ABELE_API at::Tensor identityLoss(const at::Tensor& loss, Reduction reduction = Reduction::kMean);

/// Returns the tensor. proportion: a hint of the share of memory, 0..1 (E0702), for the operation that made the tensor.
ABELE_API at::Tensor setAvailableMemory(const at::Tensor& tensor, double proportion);

/// Groups convolutions into one multi-convolution. The settings are hints. Each takes one value for all convolutions,
/// or one value per convolution.
///   abele::MultiConv().planType(abele::MultiConvPlanType::kSerial).run([&] { a = conv1(x); b = conv2(y); });
class ABELE_API MultiConv {
 public:
  MultiConv& availableMemoryProportions(std::vector<double> shares);
  MultiConv& partialsTypes(std::vector<FloatType> types);  // kFloat or kHalf (E0702)
  MultiConv& enableConvDithering(std::vector<bool> enable);
  MultiConv& planType(MultiConvPlanType type);
  MultiConv& perConvReservedTiles(int64_t tiles);
  MultiConv& cycleBackOff(double share);
  /// Throws E0710 inside a capture if body makes no convolution, if the number of values of a setting differs from the
  /// number of convolutions, or if this runs inside another MultiConv.
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
