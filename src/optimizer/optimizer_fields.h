// Optimizers by the names of their fields, as the classes of both languages have them, and the one reader that turns
// them into an OptimizerSpec. optimizer.cc takes the fields from abele::optim, optimizer_attributes.cc from Python's
// classes.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/type.h"
#include "compile/program_options.h"

namespace abele::optimizer {

/// The fields of a parameter group: numbers of optimizers.def, and flags as 0 or 1.
using Fields = std::map<std::string, double>;

struct OptimizerFields {
  OptimizerKind kind = OptimizerKind::kNone;
  std::vector<Fields> groups = {};
  double loss_scaling = 1;
  double max_grad_norm = std::numeric_limits<double>::infinity();
  /// Types of sums and moments, by field, such as "accum_type". A missing type is the parameter's.
  std::map<std::string, DType> types = {};
  bool use_combined_accum = false;  // sums and moments are float32
  bool momentum_varies = false;     // keep a velocity even if momentum is 0 at first
  bool follows_torch = true;        // false: PopTorch, where dampening acts from the first step on and nothing is fused
};

/// The numbers of a group that the device gets.
Fields numbersOf(const OptimizerFields& optimizer, const Fields& group);
/// parameters: names by group; later groups are left out. Throws E0706 for numbers that no optimizer can have.
compile::OptimizerSpec specOf(const OptimizerFields& optimizer,
                              const std::vector<std::vector<std::string>>& parameters);
/// Returns fields from which specOf makes this spec. Requires: the spec has an optimizer.
OptimizerFields fieldsOf(const compile::OptimizerSpec& spec);
/// Returns true if the device gets the same numbers from both.
bool haveSameNumbers(const OptimizerFields& a, const OptimizerFields& b);
/// The first number that differs, such as "lr of param_groups[0]"; "" if only the defaults differ (the last group).
std::string firstDifference(const OptimizerFields& sent, const OptimizerFields& now);

}  // namespace abele::optimizer
