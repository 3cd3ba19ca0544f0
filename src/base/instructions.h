// Instructions of our own ("abele::..."): instructions.def, and the updates of optimizers.def, as data. In base/
// because passes write them into graphs, exe/ verifies them in files and runtime/ runs them, and these share no other
// layer. All other instructions are operators of ATen or of libraries, by their names.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/optimizers.h"

namespace abele {

enum class OwnOp : uint8_t {
  kNone,  // an operator of somebody else, or no known one
#define ABELE_INSTRUCTION(op, ...) op,
#include "base/instructions.def"
#undef ABELE_INSTRUCTION
#define ABELE_OPTIMIZER(kind, ...) kind##Update,
#include "base/optimizers.def"
};

enum class OperandKind : uint8_t {
  kTensor,          // any sizes
  kMatrix,          // two sizes
  kLike,            // the sizes of the first operand
  kSame,            // and its element type
  kLikeOrNone,      // the same, or no tensor
  kTensors,         // a list of tensors
  kScalar,          // f32[]
  kScalarOrNone,    // the same, or no tensor
  kParameterGroup,  // a number: the hyper-parameters of this group
  kReal,
  kFlag,
  kIndex,  // a whole number from 0 on
  kWhole,  // a whole number
};

struct Operand {
  const char* name;
  OperandKind kind;
  bool is_written = false;
  bool may_lack = false;
};

/// Bits of OwnOpRow::traits.
enum OwnOpTrait : uint8_t {
  kMovesBits = 1,    // no arithmetic: what it writes is neither rounded nor counted nor checked
  kJoint = 2,        // of several processes
  kGivesScalar = 4,  // has one result, f32[]
  kMessage = 8,      // between the processes that hold the stages of one replica
  kSums = 16,  // adds the gradient of a micro-batch to its first operand, the sum, which the first of a group begins
};

struct OwnOpRow {
  OwnOp op;
  const char* name;
  int traits;
  std::vector<Operand> operands;
  const char* summary;
  /// Position of the operand that names the parameter group; -1: no update.
  int groupOperand() const;
};
/// In the order of the enumerators, without kNone.
const std::vector<OwnOpRow>& allOwnOps();
/// Null for instructions that have no row.
const OwnOpRow* ownOpRow(std::string_view name);
/// Requires: not kNone.
const char* ownOpName(OwnOp op);

/// Is the name one of ours, known or not?
inline bool isOwn(std::string_view name) { return name.starts_with("abele::"); }
/// kNone for other names.
OwnOp ownOp(std::string_view name);
bool hasTrait(std::string_view name, OwnOpTrait trait);
/// The update of an optimizer; kNone for none.
OwnOp updateOf(OptimizerKind kind);

}  // namespace abele
