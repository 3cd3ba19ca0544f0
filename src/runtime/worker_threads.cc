#include "runtime/worker_threads.h"

#include <atomic>
#include <utility>

namespace abele::runtime {
namespace {

/// Never destroyed, because programs of static lifetime may outlive it.
struct Shared {
  const Home home;
  std::mutex mutex;
  std::weak_ptr<WorkerThreads> threads;
};

}  // namespace

std::shared_ptr<WorkerThreads> WorkerThreads::ofProcess() {
  static std::atomic<Shared*> current = new Shared;
  // The parent's mutex may have been held by another thread when this process was forked.
  for (Shared* found = current; !found->home.isHere(); found = current) {
    auto own = std::make_unique<Shared>();
    if (current.compare_exchange_strong(found, own.get())) static_cast<void>(own.release());
  }
  Shared& shared = *current;
  const std::lock_guard lock(shared.mutex);
  std::shared_ptr<WorkerThreads> threads = shared.threads.lock();
  if (!threads) shared.threads = threads = std::make_shared<WorkerThreads>();
  return threads;
}

WorkerThreads::~WorkerThreads() {
  const std::lock_guard lock(mutex_);
  stops_ = true;
  for (Thread& thread : threads_) thread.wakes.notify_one();
}

void WorkerThreads::run(Job job) {
  const std::lock_guard lock(mutex_);
  Thread* thread = idle(job, true);
  if (thread == nullptr) thread = idle(job, false);
  if (thread == nullptr) {
    thread = &threads_.emplace_back();
    thread->worker = job.worker;
    try {
      thread->thread = std::jthread([this, thread] { work(*thread); });
    } catch (...) {
      threads_.pop_back();
      throw;
    }
  }
  give(*thread, std::move(job));
}

int64_t WorkerThreads::leave(int64_t program, const std::function<void(int32_t worker)>& work,
                             const std::function<void()>& done) {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (Thread& thread : threads_)
    if (thread.is_idle && thread.program == program) {
      const auto leaves = [worker = thread.worker, work](bool /*moves_in*/) { return work(worker), false; };
      give(thread, {thread.worker, program, leaves, done});
      ++count;
    }
  return count;
}

/// Requires: the mutex is held.
WorkerThreads::Thread* WorkerThreads::idle(const Job& job, bool of_program) {
  for (Thread& thread : threads_)
    if (thread.is_idle && thread.worker == job.worker && (!of_program || thread.program == job.program)) return &thread;
  return nullptr;
}

/// Requires: the mutex is held.
void WorkerThreads::give(Thread& thread, Job job) {
  thread.is_idle = false;
  thread.job = std::move(job);
  thread.wakes.notify_one();
}

void WorkerThreads::work(Thread& thread) {
  std::unique_lock lock(mutex_);
  for (;;) {
    thread.wakes.wait(lock, [&] { return stops_ || thread.job.work; });
    if (!thread.job.work) return;
    const Job job = std::exchange(thread.job, {});
    lock.unlock();
    const bool is_prepared = job.work(thread.program != job.program);
    lock.lock();
    thread.program = is_prepared ? job.program : kNone;
    thread.is_idle = true;
    lock.unlock();
    job.done();
    lock.lock();
  }
}

}  // namespace abele::runtime
