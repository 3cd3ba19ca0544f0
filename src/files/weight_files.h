// A model's tensors from files: checks that each is there, in the right shape and type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "files/tensor_set.h"

namespace torch::nn {
class Module;
}

namespace abele::files {

/// A tensor of a model under all its names, because files hold tied tensors once or several times.
struct WeightTarget {
  std::vector<std::string> names;
  at::Tensor tensor;
  bool may_be_missing = false;  // not part of the module's state, so files need not have it
};

/// Threads: safe, apart from the tensors.
class WeightFiles {
 public:
  /// path: see TensorSet. converts: tensors of another element type are converted, instead of refused.
  /// Throws the errors of TensorSet.
  WeightFiles(std::string path, bool converts) : set_(std::move(path)), converts_(converts) {}

  /// Throws E0708 if the files lack a target, have it in another shape or type, or have tensors that are not targets.
  void require(const std::vector<WeightTarget>& targets) const;
  /// Checks the contents of the targets that have memory, so that damage is found before any of them is filled. Throws
  /// E0501, E0712.   Requires: require() accepted them.
  void requireWhole(const std::vector<WeightTarget>& targets) const;
  /// Fills the target in its own memory. Reads no other tensor.
  /// Returns: true if the files have it. Throws E0501, E0712.   Requires: require() accepted it.
  bool fill(const WeightTarget& target) const;

 private:
  /// The target's name in the files; null if they do not have the target.
  const std::string* nameOf(const WeightTarget& target) const;

  TensorSet set_;
  bool converts_;
};

}  // namespace abele::files
