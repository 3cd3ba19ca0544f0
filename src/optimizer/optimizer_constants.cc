#include "optimizer/optimizer_constants.h"

#include <algorithm>

#include "base/error.h"
#include "options/value.h"

namespace abele::optimizer {

const OptimizerConstants::Value* OptimizerConstants::find(const std::string& name) const {
  const auto it = std::ranges::find(values_, name, &Value::name);
  return it == values_.end() ? nullptr : &*it;
}

std::string OptimizerConstants::shown(const Value* value) {
  if (!value) return "absent";
  if (value->kind == Kind::kVariable) return "variable";
  return value->kind == Kind::kConstant ? cat("constant ", value->text) : value->text;
}

void OptimizerConstants::require(const Value* ours, const Value* theirs) const {
  const bool counts = ours && theirs && ours->kind != Kind::kVariable;
  const bool marks_count = marks_ == Marks::kOfBoth;
  if (marks_count ? shown(ours) == shown(theirs) : !counts || ours->text == theirs->text) return;
  const bool may_be_marked = ours && ours->kind == Kind::kConstant;
  throw options::OptionError(
      ErrorCode::E0706,
      {.what = cat((ours ? ours : theirs)->name, " of the optimizer is fixed in the compiled program"),
       .found = marks_count ? shown(theirs) : theirs->text,
       .expected = shown(ours),
       .remedy = cat(may_be_marked ? "mark it with optimizer.variable_attrs.markAsVariable before the model is "
                                     "compiled (torch's own optimizers have no marks, those of poptorch.optim and "
                                     "abele::optim do), or "
                                   : "",
                     "call destroy() first")},
      options::Refused::kOtherwise);
}

void OptimizerConstants::requireSame(const OptimizerConstants& now) const {
  for (const Value& value : values_) require(&value, now.find(value.name));
  for (const Value& value : now.values_) require(find(value.name), &value);
}

}  // namespace abele::optimizer
