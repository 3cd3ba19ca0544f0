// State that a compiled program keeps although the user can change it: tensors that became constants, the set of
// trained parameters, tensors and modules that may be replaced, attributes of modules, settings of torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture/capture.h"
#include "modules/module.h"

namespace abele::modules {

/// Threads: the thread that holds the model's lock.
class Frozen {
 public:
  /// Records the present state. training: the program trains the tensors.
  Frozen(const capture::Recording& recording, const std::vector<NamedTensor>& tensors, std::vector<ModuleKind> modules,
         bool training);

  /// Whether to look for changes now: at each of the first calls, later so seldom that looking takes a hundredth of the
  /// time.
  bool isDue();
  /// Returns warnings about changes. The arguments are the present tensors and modules. Requires: isDue() was called
  /// just before.
  std::vector<std::string> changes(const std::vector<NamedTensor>& tensors, const std::vector<ModuleKind>& modules);
  /// Notes that the contents of these tensors were uploaded.
  void noteUpload(const std::vector<NamedTensor>& now);

 private:
  using Clock = std::chrono::steady_clock;
  struct Tensor {
    std::string name;
    const c10::TensorImpl* identity = nullptr;
    bool is_trained = false;
    std::vector<int64_t> sizes = {}, strides = {};  // empty if the tensor has none
  };
  /// Whether the tensor has the sizes of before with other strides.
  static bool isRestrided(const Tensor& was, const at::Tensor& now);

  void addChangesOf(const std::vector<NamedTensor>& tensors, std::vector<std::string>& found) const;
  void addChangesOf(const std::vector<ModuleKind>& modules, std::vector<std::string>& found);

  std::vector<capture::OutsideTensor> outside_;
  std::vector<Tensor> tensors_;
  const std::vector<ModuleKind> modules_;
  std::vector<std::string> settings_;  // in the order of the table
  std::set<std::string> told_;         // modules that a warning has named
  const bool training_;
  int64_t calls_ = 0;
  Clock::time_point began_ = {}, next_look_ = {};
};

/// Warns about tensors that forward stores and that later calls do not update.
void warnOfHeldResult(const capture::Recording& recording);

}  // namespace abele::modules
