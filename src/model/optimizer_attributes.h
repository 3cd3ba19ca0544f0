// Optimizers as torch.optim's classes are: attributes by name, of parameter groups and of the whole. Here is what
// PopTorch and torch make of them; whoever has such an object says only how its attributes are read.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/access.h"
#include "model/optimizer_constants.h"
#include "model/optimizer_fields.h"

namespace abele::host {

class OptimizerAttributes {
 public:
  /// A parameter group by its index: what it lacks is the optimizer's default. Or:
  static constexpr int kDefaults = -1;  // these alone
  static constexpr int kWhole = -2;     // attributes of the optimizer itself

  virtual ~OptimizerAttributes() = default;
  virtual OptimizerKind kind() const = 0;
  /// Is it of our own classes? They say which of their attributes vary, and have more of them than torch's.
  virtual bool isOurs() const = 0;
  /// Requires: isOurs().
  virtual bool isConstant(const std::string& name) const = 0;
  /// Was that asked for by name? False for torch's classes.
  virtual bool isMarkedConstant(const std::string& name) const = 0;

  virtual int numGroups() const = 0;
  virtual std::vector<at::Tensor> parameters(int group) const = 0;
  virtual bool has(int place, const std::string& name) const = 0;
  /// Nothing where the attribute is missing or is no number.
  virtual std::optional<double> number(int place, const std::string& name) const = 0;
  /// Nothing where it is no pair of numbers.
  virtual std::optional<std::pair<double, double>> pair(int place, const std::string& name) const = 0;
  /// An element type, or that of a tensor.
  virtual std::optional<DType> type(int place, const std::string& name) const = 0;
  /// False where it is missing.
  virtual bool isTrue(int place, const std::string& name) const = 0;
  /// As the program would print it.
  virtual std::string text(int place, const std::string& name) const = 0;
};

/// Groups, and behind them the defaults as one more. tensors: of the model, for the types of what is kept.
/// Throws E0706 for values that no optimizer can have, and for what the device does not do.
OptimizerFields fieldsOf(const OptimizerAttributes& optimizer, const std::vector<NamedTensor>& tensors,
                         bool follows_torch);
/// follows_torch: trainable parameters of no group stay as they are; else the defaults hold for them, as in PopTorch.
/// Throws E0706 also for groups with foreign tensors.
OptimizerSpec specOf(const OptimizerAttributes& optimizer, const std::vector<NamedTensor>& tensors, bool follows_torch);
/// PopTorch's rules. scaling_varies: see OptimizerSource. follows_torch: every number of torch's own optimizers may
/// change, as in torch.
OptimizerConstants constantsOf(const OptimizerAttributes& optimizer, bool scaling_varies, bool follows_torch);
/// Throws E0706 for wrong values, and for groups that contradict what holds for all of them.
void requireValues(const OptimizerAttributes& optimizer, bool follows_torch);

/// Names of the model's parameters, by group: matched by memory. An empty one is no parameter of the model.
std::vector<std::vector<std::string>> namesOf(const OptimizerAttributes& optimizer,
                                              const std::vector<NamedTensor>& tensors);
/// Of trainable ones, each once, and last those of no group. Throws E0706 for foreign tensors.
std::vector<std::vector<std::string>> trainedNamesOf(const OptimizerAttributes& optimizer,
                                                     const std::vector<NamedTensor>& tensors);

}  // namespace abele::host
