#include "base/instructions.h"

#include "base/error.h"

namespace abele {
namespace {

// Functions that instructions.def uses in its columns.
template <class... Operands>
std::vector<Operand> operands(Operands... all) {
  return {all...};
}
Operand reads(const char* name, OperandKind kind) { return {name, kind}; }
Operand writes(const char* name, OperandKind kind) { return {name, kind, /*is_written=*/true}; }
Operand mayRead(const char* name, OperandKind kind) { return {name, kind, /*is_written=*/false, /*may_lack=*/true}; }
Operand mayWrite(const char* name, OperandKind kind) { return {name, kind, /*is_written=*/true, /*may_lack=*/true}; }

// The operands of an update, in order: parameter, gradient sum, states, group, flag, and the clipping factor if the
// program clips.
std::vector<Operand> updateOperands(const OptimizerRow& optimizer) {
  using enum OperandKind;
  std::vector<Operand> all = {writes("param", kTensor), reads("accumulator", kLike)};
  for (const OptimizerState& state : optimizer.states) {
    if (state.is_behind_factor) continue;
    const bool is_step = state.type == OptimizerState::Type::kStep;
    all.push_back(writes(state.name,
                         is_step ? (state.kept_if ? kScalarOrNone : kScalar) : (state.kept_if ? kLikeOrNone : kLike)));
  }
  all.push_back(reads("group", kParameterGroup));
  if (optimizer.flag.name) all.push_back(reads(optimizer.flag.name, kFlag));
  all.push_back(mayRead("factor", kScalarOrNone));
  for (const OptimizerState& state : optimizer.states)
    if (state.is_behind_factor) all.push_back(mayWrite(state.name, kScalarOrNone));
  return all;
}

std::vector<OwnOpRow> makeRows() {
  using enum OperandKind;
  std::vector<OwnOpRow> rows = {
#define ABELE_INSTRUCTION(op, name, traits, operands, summary) {OwnOp::op, name, traits, operands, summary},
#include "base/instructions.def"
#undef ABELE_INSTRUCTION
  };
  for (const OptimizerRow& optimizer : allOptimizers())
    rows.push_back({updateOf(optimizer.kind), optimizer.op, 0, updateOperands(optimizer), optimizer.summary});
  return rows;
}

}  // namespace

int OwnOpRow::groupOperand() const {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].kind == OperandKind::kParameterGroup) return static_cast<int>(i);
  return -1;
}

const std::vector<OwnOpRow>& allOwnOps() {
  static const std::vector<OwnOpRow> rows = makeRows();
  return rows;
}

const OwnOpRow* ownOpRow(std::string_view name) {
  if (!isOwn(name)) return nullptr;
  for (const OwnOpRow& row : allOwnOps())
    if (name == row.name) return &row;
  return nullptr;
}

const char* ownOpName(OwnOp op) {
  ABELE_CHECK(op != OwnOp::kNone, "kNone has no name");
  return allOwnOps().at(static_cast<size_t>(op) - 1).name;
}

OwnOp ownOp(std::string_view name) {
  const OwnOpRow* row = ownOpRow(name);
  return row ? row->op : OwnOp::kNone;
}

OwnOp updateOf(OptimizerKind kind) {
  switch (kind) {
#define ABELE_OPTIMIZER(kind, ...) \
  case OptimizerKind::kind: return OwnOp::kind##Update;
#include "base/optimizers.def"
    case OptimizerKind::kNone: break;
  }
  return OwnOp::kNone;
}

bool hasTrait(std::string_view name, OwnOpTrait trait) {
  const OwnOpRow* row = ownOpRow(name);
  return row && (row->traits & trait) != 0;
}

}  // namespace abele
