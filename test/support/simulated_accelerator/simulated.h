// An accelerator that is none: several devices in this process, for tests of what is written against LibTorch's
// device-generic classes. Loading the library registers it as torch's PrivateUse1 device "simulated".
// Streams are threads; memory is where the host cannot touch it; what is freed is poisoned; a vector clock for each
// stream and a history for each piece of memory find every wait that is missing, whether or not it did harm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace simulated {

constexpr int kDevices = 4;

/// Waits between kernels, drawn from this seed; 0: none.
void setDelays(uint64_t seed);
/// What was found since the last call: accesses that no event orders, each as a sentence.
std::vector<std::string> takeFindings();
/// Kernels and copies enqueued since the process began.
int64_t numJobs();
/// Times that a host thread waited for a stream, an event or a device since the process began.
int64_t numHostWaits();
/// Graphs captured, and replays of graphs, since the process began.
int64_t numCaptures();
int64_t numReplays();
/// Messages of torch.distributed that were given to streams since the process began, at either end.
int64_t numMessages();
/// Seeds the default generators of all devices.
void seedAll(uint64_t seed);

}  // namespace simulated

// For Python's ctypes.
extern "C" {
void simulated_set_delays(uint64_t seed);
/// Number of findings; the text of all is in a buffer that stays until the next call.
int64_t simulated_take_findings(const char** text);
int64_t simulated_jobs();
int64_t simulated_host_waits();
int64_t simulated_captures();
int64_t simulated_replays();
int64_t simulated_messages();
void simulated_seed(uint64_t seed);
}
