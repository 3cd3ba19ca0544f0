// Which options still count for a program that is compiled already. Source: spec executor.md section 7.1, load().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options/store.h"

namespace abele::host {

/// Gives all options and expert settings that are part of a program, and the strategy, their values of then.
/// Returns: the names of those that had others.
std::vector<std::string> keepCompiled(Options::Values& now, const Options::Values& compiled);
/// Is it part of a program, of what the group Distributed has? All else there says which process this is.
bool isOfProgram(const std::string& distributed);
/// Options for a file, as JSON: all but this process's number and how many there are, which differ from start to start.
std::string textOfSaved(Options::Values values);
/// Options of a file, as a program that was compiled with them runs here: one that was compiled for a machine without
/// devices attaches to this machine's. text: what textOfSaved() made of them; empty: defaults. Throws E0501 where they
/// are none.
Options::Values savedOptions(const std::string& text);
/// Gives a file's options the place among the processes that this one has; their number may be another one here.
/// process, processes: for which of how many the program was compiled.
void takePlaceHere(Options::Values& saved, int64_t process, int64_t processes);
/// The names of keepCompiled() that `chosen` says otherwise than new options do: somebody asked for them.
std::vector<std::string> chosenInVain(const std::vector<std::string>& kept, const Options::Values& chosen);

}  // namespace abele::host
