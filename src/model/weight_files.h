// A model's tensors from files: what must be there, and in which shape and type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/tensor_set.h"

namespace torch::nn {
class Module;
}

namespace abele::host {

/// A tensor of a model, under all names that it has there: files hold tied ones once or several times.
struct WeightTarget {
  std::vector<std::string> names;
  at::Tensor tensor;
  bool may_be_missing = false;  // no part of the module's state: files need not have it
};

/// All parameters and buffers of a module.
std::vector<WeightTarget> weightTargetsOf(const torch::nn::Module& module);

/// Threads: safe, apart from the tensors.
class WeightFiles {
 public:
  /// path: see TensorSet. converts: tensors of another element type are converted, instead of refused.
  /// Throws as TensorSet.
  WeightFiles(std::string path, bool converts) : set_(std::move(path)), converts_(converts) {}

  /// Throws E0708 where the files lack a target, have it in another shape or type, or have what is no target.
  void require(const std::vector<WeightTarget>& targets) const;
  /// Looks through the contents of the targets that have memory, so that damage is found before one is filled. Throws
  /// E0501, E0712.   Requires: require() of them.
  void requireWhole(const std::vector<WeightTarget>& targets) const;
  /// Fills the target, which keeps its memory; what is read of a file goes there at once. Reads no other tensor.
  /// Returns: whether the files have it. Throws E0501, E0712.   Requires: require() of it.
  bool fill(const WeightTarget& target) const;

 private:
  /// The name under which the files have it; null: they do not.
  const std::string* nameOf(const WeightTarget& target) const;

  TensorSet set_;
  bool converts_;
};

}  // namespace abele::host
