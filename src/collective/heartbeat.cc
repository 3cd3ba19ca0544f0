#include "collective/heartbeat.h"

#include <chrono>
#include <utility>

namespace abele::collective {
namespace {

constexpr int64_t kBeats = 8;  // in the time that a process may be silent

}  // namespace

Heartbeat::Heartbeat(Calls calls, int64_t silence_s) : calls_(std::move(calls)), silence_s_(silence_s) {
  for (void (Heartbeat::*loop)() : {&Heartbeat::tellAll, &Heartbeat::hearAll, &Heartbeat::watch})
    threads_.emplace_back([this, loop] { (this->*loop)(); });
}

Heartbeat::~Heartbeat() {
  end();
  join();
}

void Heartbeat::end() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_all();
}

void Heartbeat::join() {
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Heartbeat::tellAll() {
  while (calls_.tell() && sleep()) {
  }
}

void Heartbeat::hearAll() {
  Heard heard = calls_.hear();
  for (; heard == Heard::kPresent; heard = calls_.hear()) {
    const std::lock_guard lock(mutex_);
    ++heard_;
  }
  {
    const std::lock_guard lock(mutex_);
    heard_ = 0;
  }
  if (heard == Heard::kGoodbye) return;
  // It has left. If it has done its part of a step, the step may still end normally, so wait before reporting it.
  for (int64_t beat = 0; beat < kBeats; ++beat)
    if (!sleep()) return;
  calls_.lost();
}

// Counts its own sleeps instead of reading the clock: if this whole machine was suspended, the other process was not
// silent.
void Heartbeat::watch() {
  int64_t last = 0, silent = 0;
  while (sleep()) {
    const int64_t heard = [this] {
      const std::lock_guard lock(mutex_);
      return heard_;
    }();
    silent = heard == last ? silent + 1 : 0;
    last = heard;
    if (heard > 0 && silent >= kBeats) return calls_.lost();
  }
}

bool Heartbeat::sleep() {
  std::unique_lock lock(mutex_);
  return !ended_.wait_for(lock, std::chrono::milliseconds(silence_s_ * 1000 / kBeats), [this] { return is_over_; });
}

}  // namespace abele::collective
