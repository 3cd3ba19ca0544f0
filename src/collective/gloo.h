// Makes the process group of a training from environment variables, which a launcher (torchrun, poprun, mpirun) or the
// user sets.
#pragma once

#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class ProcessGroup;
}

namespace abele::collective {

/// Connects this process with the others over Gloo. All processes call it. Reads MASTER_ADDR, MASTER_PORT,
/// ABELE_PROCESS_TIMEOUT (seconds) and torchrun's TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RESTART_COUNT. Throws
/// E0714 if no variable has the address of the others, or if they do not connect in time.
c10::intrusive_ptr<c10d::ProcessGroup> connectProcesses(const std::string& name, int64_t process, int64_t processes);

}  // namespace abele::collective
