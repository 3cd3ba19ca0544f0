// Optimizers by the names of their fields, as the classes of both languages have them, and the one reader that makes an
// OptimizerSpec of them. optimizer.cc takes the fields from abele::optim, optimizer_attributes.cc from classes of
// Python.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/type.h"
#include "compile/program_options.h"

namespace abele::host {

/// Of a parameter group: numbers of optimizers.def, and flags as 0 or 1.
using Fields = std::map<std::string, double>;

struct OptimizerFields {
  OptimizerKind kind = OptimizerKind::kNone;
  std::vector<Fields> groups = {};
  double loss_scaling = 1;
  double max_grad_norm = std::numeric_limits<double>::infinity();
  /// Of sums and moments, by the field that says it, such as "accum_type"; where there is none it is the parameter's.
  std::map<std::string, DType> types = {};
  bool use_combined_accum = false;  // all of them are float32
  bool momentum_varies = false;     // a velocity is kept also where momentum is 0 at first
  bool follows_torch = true;        // else PopTorch: dampening counts from the first step on, and nothing is fused
};

/// The numbers that the device gets of a group.
Fields numbersOf(const OptimizerFields& optimizer, const Fields& group);
/// Parameters: names, by group; groups behind these are left out. Throws E0706 for numbers that no optimizer can have.
OptimizerSpec specOf(const OptimizerFields& optimizer, const std::vector<std::vector<std::string>>& parameters);
/// An optimizer of which specOf makes this spec. Requires: it has one.
OptimizerFields fieldsOf(const OptimizerSpec& spec);
/// Does the device get the same numbers of both?
bool haveSameNumbers(const OptimizerFields& a, const OptimizerFields& b);
/// The first number that differs, such as "lr of param_groups[0]"; "": none but defaults, the groups behind all others.
std::string firstDifference(const OptimizerFields& sent, const OptimizerFields& now);

}  // namespace abele::host
