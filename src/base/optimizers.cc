#include "base/optimizers.h"

#include "base/error.h"

namespace abele {
namespace {

// Functions that optimizers.def uses in its columns.
template <class... Names>
std::vector<std::string> numbers(Names... names) {
  return {names...};
}
template <class... States>
std::vector<OptimizerState> keeps(States... states) {
  return {states...};
}
OptimizerState first(const char* name, const char* name_in_poptorch) {
  return {name, name_in_poptorch, name, OptimizerState::Type::kFirstMoment};
}
OptimizerState second(const char* name, const char* name_in_poptorch) {
  return {name, name_in_poptorch, name, OptimizerState::Type::kSecondMoment};
}
OptimizerState step(const char* name_in_poptorch) {
  return {"step", name_in_poptorch, "step", OptimizerState::Type::kStep};
}
OptimizerFlag flag(const char* name, GroupProperty property) { return {name, property}; }
OptimizerFlag noFlag() { return {}; }

template <class T>
OptimizerState with(OptimizerState state, T OptimizerState::*field, T value) {
  state.*field = value;
  return state;
}

std::string inLowerCase(std::string name) {
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return name;
}

}  // namespace

using State = OptimizerState;
State State::onlyIf(GroupProperty property) const { return with(*this, &State::kept_if, property); }
State State::fromOneIf(GroupProperty property) const { return with(*this, &State::starts_at_one, property); }
State State::inTorch(const char* torch_name) const { return with(*this, &State::name_in_torch, torch_name); }
State State::behindFactor() const { return with(*this, &State::is_behind_factor, true); }

const std::vector<OptimizerRow>& allOptimizers() {
#define ABELE_OPTIMIZER(kind, name, op, traits, numbers, states, flag, summary) \
  { OptimizerKind::kind, #name, op, traits, numbers, states, flag, summary }    \
  ,
  static const std::vector<OptimizerRow> rows = {
#include "base/optimizers.def"
  };
  return rows;
}

const OptimizerRow& optimizerRow(OptimizerKind kind) {
  ABELE_CHECK(kind != OptimizerKind::kNone, "kNone has no row");
  return allOptimizers().at(static_cast<size_t>(kind) - 1);
}

OptimizerKind optimizerNamed(std::string_view lower_case) {
  for (const OptimizerRow& row : allOptimizers())
    if (inLowerCase(row.name) == lower_case) return row.kind;
  return OptimizerKind::kNone;
}

std::vector<std::string> optimizerNames(std::vector<std::string> first) {
  for (const OptimizerRow& row : allOptimizers()) first.push_back(inLowerCase(row.name));
  return first;
}

}  // namespace abele
