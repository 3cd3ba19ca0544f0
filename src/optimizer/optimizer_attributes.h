// Optimizers in the form of torch.optim's classes: attributes by name, of parameter groups and of the whole optimizer.
// This file applies the rules of PopTorch and torch. A front end only implements the reading of attributes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "modules/module.h"
#include "optimizer/optimizer.h"
#include "optimizer/optimizer_constants.h"
#include "optimizer/optimizer_fields.h"

namespace abele::optimizer {

class OptimizerAttributes {
 public:
  /// A place is the index of a parameter group, which inherits the defaults, or one of these:
  static constexpr int kDefaults = -1;  // the defaults
  static constexpr int kWhole = -2;     // attributes of the optimizer itself

  virtual ~OptimizerAttributes() = default;
  virtual OptimizerKind kind() const = 0;
  /// Returns true for our own classes, which have isConstant() and more attributes than torch's.
  virtual bool isOurs() const = 0;
  /// Requires: isOurs().
  virtual bool isConstant(const std::string& name) const = 0;
  /// Returns true if the user marked the attribute by name. False for torch's classes.
  virtual bool isMarkedConstant(const std::string& name) const = 0;

  virtual int numGroups() const = 0;
  virtual std::vector<at::Tensor> parameters(int group) const = 0;
  virtual bool has(int place, const std::string& name) const = 0;
  /// Returns nothing if the attribute is missing or not a number.
  virtual std::optional<double> number(int place, const std::string& name) const = 0;
  /// Returns nothing if it is not a pair of numbers.
  virtual std::optional<std::pair<double, double>> pair(int place, const std::string& name) const = 0;
  /// Returns an attribute that is an element type, or the element type of an attribute that is a tensor.
  virtual std::optional<DType> type(int place, const std::string& name) const = 0;
  /// Returns false if the attribute is missing.
  virtual bool isTrue(int place, const std::string& name) const = 0;
  /// Returns the text that the program would print.
  virtual std::string text(int place, const std::string& name) const = 0;
};

/// The spec without parameters. The defaults are an additional last group. tensors: the model's, for the types of the
/// state. Throws E0706 for values that no optimizer can have, and for features that the device lacks.
OptimizerSpec numbersOf(const OptimizerAttributes& optimizer, const std::vector<modules::NamedTensor>& tensors,
                        bool follows_torch);
/// follows_torch: trainable parameters in no group do not change. Otherwise the defaults apply to them, as in PopTorch.
/// Also throws E0706 for groups with tensors of other modules.
compile::OptimizerSpec specOf(const OptimizerAttributes& optimizer, const std::vector<modules::NamedTensor>& tensors,
                              bool follows_torch);
/// Applies PopTorch's rules. scaling_varies: see OptimizerSource. follows_torch: every number of torch's own optimizers
/// may change, as in torch.
OptimizerConstants constantsOf(const OptimizerAttributes& optimizer, bool scaling_varies, bool follows_torch);
/// Throws E0706 for wrong values, and for groups that contradict values for the whole optimizer.
void requireValues(const OptimizerAttributes& optimizer, bool follows_torch);

/// Names of the model's parameters by group, matched by memory. An empty name is not a parameter of the model.
std::vector<std::vector<std::string>> namesOf(const OptimizerAttributes& optimizer,
                                              const std::vector<modules::NamedTensor>& tensors);
/// Names of trainable parameters by group, each once. The last list has those in no group. Throws E0706 for tensors of
/// other modules.
std::vector<std::vector<std::string>> trainedNamesOf(const OptimizerAttributes& optimizer,
                                                     const std::vector<modules::NamedTensor>& tensors);

}  // namespace abele::optimizer
