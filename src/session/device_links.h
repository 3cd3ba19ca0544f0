// Links between accelerators of several processes that bypass the host's memory (ABELE_HANDOVER=device).
#pragma once

#include <functional>

namespace abele::compile {
struct ProgramOptions;
}  // namespace abele::compile

namespace abele::session {

struct Compiled;

/// Connects the accelerators of a loaded program with those of other processes. Does nothing unless the variable asks
/// for it and a link leaves this process's replica. All processes call it. poll: as in Session. Throws E0714, E0702,
/// E0606, E0602.
void connectLinks(const Compiled& compiled, const compile::ProgramOptions& options, const std::function<bool()>& poll);

}  // namespace abele::session
