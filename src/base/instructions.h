// Instructions of our own ("abele::...") as data: the rows of instructions.def, and the updates of optimizers.def.
// Passes write them into graphs, exe/ verifies them in files and runtime/ runs them. They are in base/ because these
// three layers share no other. All other instructions are operators of ATen or of libraries, under their own names.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/optimizers.h"

namespace abele {

enum class OwnOp : uint8_t {
  kNone,  // an operator of ATen or of a library, or an unknown name
#define ABELE_INSTRUCTION(op, ...) op,
#include "base/instructions.def"
#undef ABELE_INSTRUCTION
#define ABELE_OPTIMIZER(kind, ...) kind##Update,
#include "base/optimizers.def"
};

enum class OperandKind : uint8_t {
  kTensor,          // a tensor of any sizes
  kMatrix,          // a tensor with two dimensions
  kLike,            // a tensor with the sizes of the first operand
  kSame,            // a tensor with the sizes and the element type of the first operand
  kLikeOrNone,      // like kLike, or no tensor
  kTensors,         // a list of tensors
  kScalar,          // f32[]
  kScalarOrNone,    // f32[], or no tensor
  kParameterGroup,  // the index of the parameter group whose hyper-parameters it reads
  kReal,
  kFlag,
  kIndex,  // a whole number that is not negative
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
  kMovesBits = 1,    // a copy without arithmetic: no rounding, no floating-point checks, not counted as arithmetic
  kJoint = 2,        // several processes run it together
  kGivesScalar = 4,  // its only result is f32[]
  kMessage = 8,      // a message between the processes that hold the stages of one replica
  kSums = 16,        // adds a micro-batch's gradient to its first operand, a sum; the first micro-batch of a group
                     // overwrites the sum
};

struct OwnOpRow {
  OwnOp op;
  const char* name;
  int traits;
  std::vector<Operand> operands;
  const char* summary;
  /// Position of the operand that names the parameter group; -1 if this is not an update.
  int groupOperand() const;
};
/// In the order of the enumerators, without kNone.
const std::vector<OwnOpRow>& allOwnOps();
/// Null for instructions that have no row.
const OwnOpRow* ownOpRow(std::string_view name);
/// The name of an instruction.   Requires: op is not kNone.
const char* ownOpName(OwnOp op);

/// Whether the name is one of ours, known or unknown.
inline bool isOwn(std::string_view name) { return name.starts_with("abele::"); }
/// The instruction with this name; kNone for names that are not ours.
OwnOp ownOp(std::string_view name);
bool hasTrait(std::string_view name, OwnOpTrait trait);
/// The instruction that updates weights with this optimizer; kNone for OptimizerKind::kNone.
OwnOp updateOf(OptimizerKind kind);

}  // namespace abele
