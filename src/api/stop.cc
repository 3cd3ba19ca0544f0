// abele::StopOnSignal: a handler that notes signals and restores the previous handlers.
#include "abele/stop.h"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "processes/processes.h"

namespace abele {
namespace {

// A signal handler may use nothing that locks.
std::atomic<int> g_received = 0;
std::atomic<int> g_alive = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  if (g_received.exchange(signal) == 0) return;
  // The second signal: restores the default action, for users who do not want to wait.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  ::raise(signal);
}

}  // namespace

StopOnSignal::StopOnSignal(const std::vector<int>& signals) {
  if (g_alive++ == 0) g_received = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;  // the signal does not interrupt reads and writes of files
  for (const int signal : signals) {
    Former former{.signal = signal};
    if (::sigaction(signal, &action, &former.action) == 0) {
      former_.push_back(former);
      continue;
    }
    const std::string why = std::strerror(errno);
    for (const Former& each : former_) ::sigaction(each.signal, &each.action, nullptr);
    --g_alive;
    throwUser(ErrorCode::E0708, {.what = cat("signal ", signal, " cannot be caught: ", why),
                                 .expected = "SIGTERM, SIGINT, or another one that programs may handle",
                                 .remedy = "leave it out"});
  }
}

StopOnSignal::~StopOnSignal() {
  for (auto former = former_.rbegin(); former != former_.rend(); ++former)
    ::sigaction(former->signal, &former->action, nullptr);
  --g_alive;
}

int StopOnSignal::signal() const { return g_received; }
bool StopOnSignal::agreed() const { return processes::anyOfJoined(requested()); }

}  // namespace abele
