#include "model/optimizer_constants.h"

#include <algorithm>

#include "base/error.h"
#include "options/value.h"

namespace abele::host {

void OptimizerConstants::note(std::string name, const std::string& text, bool is_constant) {
  note(std::move(name), is_constant ? cat("constant ", text) : "variable");
}

const std::string& OptimizerConstants::textOf(const std::string& name) const {
  static const std::string absent = "absent";
  const auto it = std::ranges::find(values_, name, &std::pair<std::string, std::string>::first);
  return it == values_.end() ? absent : it->second;
}

void OptimizerConstants::requireSame(const OptimizerConstants& now) const {
  const auto require = [&](const std::string& name) {
    const std::string &ours = textOf(name), &theirs = now.textOf(name);
    if (ours == theirs) return;
    const bool may_be_marked = ours.find("constant") != std::string::npos;
    throw OptionError(
        ErrorCode::E0706,
        {.what = cat(name, " of the optimizer is fixed in the compiled program"),
         .found = theirs,
         .expected = ours,
         .remedy = cat(may_be_marked ? "mark it with optimizer.variable_attrs.markAsVariable before the model is "
                                       "compiled, or "
                                     : "",
                       "call destroy() first")},
        /*builtin=*/{});
  };
  for (const auto& [name, text] : values_) require(name);
  for (const auto& [name, text] : now.values_) require(name);
}

}  // namespace abele::host
