// Turns the fields of parameter groups into an OptimizerSpec, for the classes of both languages. optimizer.cc takes the
// fields from abele::optim, optimizer_attributes.cc from Python's classes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/program_options.h"

namespace abele::optimizer {

using compile::OptimizerSpec;

/// The fields of a parameter group by name: numbers of optimizers.def, and flags as 0 or 1.
using Fields = std::map<std::string, double>;

struct Reading {
  bool momentum_varies = false;  // keep a velocity even if momentum is 0 at first
  bool follows_torch = true;     // false: follows PopTorch, where dampening applies from the first step on and nothing
                                 // is fused
};

/// Adds a group without parameters, with the numbers that the device gets. Requires: the spec's kind is set.
void addGroup(OptimizerSpec& spec, const Fields& group, const Reading& reading = {});
/// parameters: names by group; drops groups beyond them. Throws E0706 for numbers that no optimizer can have.
OptimizerSpec withParameters(OptimizerSpec spec, const std::vector<std::vector<std::string>>& parameters);
/// Returns the fields of a group; addGroup makes the same group from them.
Fields fieldsOf(const OptimizerSpec& spec, std::size_t group);
/// Returns true if a group keeps a velocity while its momentum is 0.
inline bool momentumVaries(const OptimizerSpec& spec) {
  bool any = false;
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    const auto momentum = spec.groups[g].find("momentum");
    any = any || (spec.rules.groups[g].momentum && (momentum == spec.groups[g].end() || momentum->second == 0));
  }
  return any;
}
/// Gives gradient sums and moments one element type.
void setTypes(OptimizerSpec& spec, DType type);
/// Returns true if the device gets the same numbers from both.
bool haveSameNumbers(const OptimizerSpec& a, const OptimizerSpec& b);
/// The first number that differs, such as "lr of param_groups[0]"; "" if only the defaults differ (the last group).
std::string firstDifference(const OptimizerSpec& sent, const OptimizerSpec& now);

}  // namespace abele::optimizer
