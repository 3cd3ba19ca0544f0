// The optimizers as data: the rows of optimizers.def. Passes lower them to instructions, runtime runs these, and the
// APIs name them. They are in base/ because these layers may not include each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace abele {

enum class OptimizerKind : uint8_t {
  kNone,
#define ABELE_OPTIMIZER(kind, ...) kind,
#include "base/optimizers.def"
};

/// Properties of a parameter group that are fixed when the program is compiled.
struct OptimizerGroup {
  bool momentum = false;
  bool torch_dampening = false;  // SGD: the first step with momentum takes the whole gradient; counts such steps
  bool amsgrad = false;
  bool centered = false;        // RMSprop
  bool tf_variant = false;      // RMSprop: epsilon under the root, state starting at 1
  bool bias_correction = true;  // LAMB
};
using GroupProperty = bool OptimizerGroup::*;

/// A tensor that the optimizer keeps for each parameter from step to step.
struct OptimizerState {
  enum class Type : uint8_t { kFirstMoment, kSecondMoment, kStep };
  const char* name;
  const char* name_in_poptorch;  // in ipu_state
  const char* name_in_torch;     // "": torch does not have it
  Type type;
  GroupProperty kept_if = nullptr;        // null: always
  GroupProperty starts_at_one = nullptr;  // null: starts at 0
  bool is_behind_factor = false;  // its operand follows the clipping factor, which is otherwise the last operand

  OptimizerState onlyIf(GroupProperty property) const;
  OptimizerState fromOneIf(GroupProperty property) const;
  OptimizerState inTorch(const char* torch_name) const;
  OptimizerState behindFactor() const;
  bool isKept(const OptimizerGroup& group) const { return kept_if == nullptr || group.*kept_if; }
};

/// Bits of OptimizerRow::traits.
enum OptimizerTrait : uint8_t {
  kOfTorch = 1,   // torch.optim has this optimizer
  kFused = 2,     // the device has torch's fused implementation of it
  kRealOnly = 4,  // not defined for complex parameters
};

struct OptimizerFlag {
  const char* name = nullptr;  // null: the instruction has no flag
  GroupProperty property = nullptr;
};

struct OptimizerRow {
  OptimizerKind kind;
  const char* name;
  const char* op;
  int traits;
  std::vector<std::string> numbers;
  std::vector<OptimizerState> states;
  OptimizerFlag flag;
  const char* summary;
};
/// In the order of the enumerators, without kNone.
const std::vector<OptimizerRow>& allOptimizers();
/// The row of an optimizer.   Requires: kind is not kNone.
const OptimizerRow& optimizerRow(OptimizerKind kind);
/// The optimizer with this public name in lower case, "sgd" -> kSgd; kNone for an unknown name.
OptimizerKind optimizerNamed(std::string_view lower_case);
/// `first`, followed by the public names in lower case; for messages and help.
std::vector<std::string> optimizerNames(std::vector<std::string> first = {});

/// The range of a number of a parameter group.
enum class NumberRange : uint8_t { kAny, kNotNegative, kBelowOne };

}  // namespace abele
