// State that a compiled program keeps although the user can change it: tensors that became constants, which
// parameters are trained, tensors and modules that others have replaced, what modules are beside their tensors,
// settings of torch.
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

/// Threads: whoever has a turn of the model.
class Frozen {
 public:
  /// As it was when this was recorded. training: it trains the tensors.
  Frozen(const capture::Recording& recording, const std::vector<NamedTensor>& tensors, std::vector<ModuleKind> modules,
         bool training);

  /// Is it time to look? It is for the first calls, later so seldom that looking takes a hundredth of the time.
  bool isDue();
  /// Warnings of what has changed. The arguments are as they are now. Requires: isDue() was asked just before.
  std::vector<std::string> changes(const std::vector<NamedTensor>& tensors, const std::vector<ModuleKind>& modules);
  /// The devices have the contents of these.
  void noteUpload(const std::vector<NamedTensor>& now);

 private:
  using Clock = std::chrono::steady_clock;
  struct Tensor {
    std::string name;
    const c10::TensorImpl* identity = nullptr;
    bool is_trained = false;
  };

  void addChangesOf(const std::vector<NamedTensor>& tensors, std::vector<std::string>& found) const;
  void addChangesOf(const std::vector<ModuleKind>& modules, std::vector<std::string>& found);

  std::vector<capture::OutsideTensor> outside_;
  std::vector<Tensor> tensors_;
  const std::vector<ModuleKind> modules_;
  std::vector<std::string> settings_;  // in the order of the table
  std::set<std::string> told_;         // modules that have been named
  const bool training_;
  int64_t calls_ = 0;
  Clock::time_point began_ = {}, next_look_ = {};
};

/// Warns of what forward leaves where later calls do not renew it.
void warnOfHeldResult(const capture::Recording& recording);

}  // namespace abele::modules
