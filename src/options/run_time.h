// Which options still count for a program that is compiled already. Source: spec executor.md section 7.1, load().
#pragma once

#include <string>
#include <vector>

#include "options/store.h"

namespace abele::host {

/// Gives all options and expert settings that are part of a program, and the strategy, their values of then.
/// Returns: the names of those that had others.
std::vector<std::string> keepCompiled(Options::Values& now, const Options::Values& compiled);

}  // namespace abele::host
