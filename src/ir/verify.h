// The rules that a graph keeps in each form. The pipeline verifies them after each pass that changed something.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace abele::ir {

/// In order of lowering. Rules: ir/forms.def.
enum class Form { kCaptured, kNormal, kStaged, kLowered };
/// "captured", "normal", "staged", "lowered".
std::string_view formName(Form form);

/// Returns all findings; empty when the graph is well formed.
std::vector<std::string> verify(const Graph& graph, Form form);
/// Throws InternalError (or UserError E0203 when from_user) listing the findings.
void requireValid(const Graph& graph, Form form, bool from_user = false);

}  // namespace abele::ir
