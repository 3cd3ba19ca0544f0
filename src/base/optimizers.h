// The optimizers: optimizers.def as data. In base/ because passes lower them, runtime runs them and the APIs name them,
// and no two of these layers may include each other.
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
  bool torch_dampening = false;  // SGD: the first step with momentum takes the whole gradient; counts those steps
  bool amsgrad = false;
  bool centered = false;        // RMSprop
  bool tf_variant = false;      // RMSprop: epsilon under the root, state starting at 1
  bool bias_correction = true;  // LAMB
};
using GroupProperty = bool OptimizerGroup::*;

/// A tensor that is kept of each parameter from step to step.
struct OptimizerState {
  enum class Type : uint8_t { kFirstMoment, kSecondMoment, kStep };
  const char* name;
  const char* name_in_poptorch;  // in ipu_state
  const char* name_in_torch;     // "": torch has none
  Type type;
  GroupProperty kept_if = nullptr;        // null: always
  GroupProperty starts_at_one = nullptr;  // else at 0
  bool is_behind_factor = false;  // its place among the operands: behind the clipping factor, which is last else

  OptimizerState onlyIf(GroupProperty property) const;
  OptimizerState fromOneIf(GroupProperty property) const;
  OptimizerState inTorch(const char* torch_name) const;
  OptimizerState behindFactor() const;
  bool isKept(const OptimizerGroup& group) const { return kept_if == nullptr || group.*kept_if; }
};

/// Bits of OptimizerRow::traits.
enum OptimizerTrait : uint8_t {
  kOfTorch = 1,   // torch.optim has it
  kFused = 2,     // and the device torch's fused implementation
  kRealOnly = 4,  // not defined for complex parameters
};

struct OptimizerFlag {
  const char* name = nullptr;  // null: the instruction has none
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
/// Requires: kind is not kNone.
const OptimizerRow& optimizerRow(OptimizerKind kind);
/// "sgd" -> kSgd: public names in lower case; kNone for all others.
OptimizerKind optimizerNamed(std::string_view lower_case);
/// These names, and then public names in lower case; for messages and help.
std::vector<std::string> optimizerNames(std::vector<std::string> first = {});

/// What a number of a parameter group may be.
enum class NumberRange : uint8_t { kAny, kNotNegative, kBelowOne };

}  // namespace abele
