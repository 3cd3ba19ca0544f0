#include "runtime/pager.h"

#include <utility>

namespace abele::runtime {

Pager::Pager(Backend& backend, const exe::WorkerProgram& worker, bool fetch_ahead)
    : backend_(backend), worker_(worker), fetch_ahead_(fetch_ahead), thread_([this] { work(); }) {}

Pager::~Pager() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
}

void Pager::before(size_t action) {
  if (requested_ != action) request(action);
  {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return num_done_ >= ticket_; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  if (fetch_ahead_) request((action + 1) % worker_.actions.size());
}

void Pager::after(size_t action) {
  if (!worker_.actions[action].releases.empty()) post({&worker_.actions[action].releases, /*is_fetch=*/false});
}

void Pager::reset() {
  requested_ = kNone;
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return num_done_ == num_posted_; });
  error_ = nullptr;
  done_.clear();
}

void Pager::takeTimes(int32_t worker, std::chrono::steady_clock::time_point begin, std::vector<PagingTime>& into) {
  const std::lock_guard lock(mutex_);
  for (const Done& done : done_)
    into.push_back({worker, done.is_fetch, std::chrono::nanoseconds(done.begin - begin).count(),
                    std::chrono::nanoseconds(done.end - begin).count()});
  done_.clear();
}

void Pager::request(size_t action) {
  requested_ = action;
  if (!worker_.actions[action].fetches.empty()) post({&worker_.actions[action].fetches, /*is_fetch=*/true});
  ticket_ = num_posted_;
}

void Pager::post(Job job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    ++num_posted_;
  }
  posted_.notify_one();
}

void Pager::work() {
  for (std::unique_lock lock(mutex_);;) {
    posted_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    Done done{.is_fetch = job.is_fetch, .begin = std::chrono::steady_clock::now(), .end = {}};
    try {
      for (const exe::FrameUse& frame : *job.frames) job.is_fetch ? backend_.fetch(frame) : backend_.release(frame);
    } catch (...) {
      error = std::current_exception();
    }
    done.end = std::chrono::steady_clock::now();
    lock.lock();
    done_.push_back(done);
    if (error && !error_) error_ = std::move(error);
    ++num_done_;
    finished_.notify_all();
  }
}

}  // namespace abele::runtime
