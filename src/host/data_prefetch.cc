// Batches made ahead by a thread.
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "host/data_batches.h"
#include "runtime/device/cpu/intra_op_threads.h"

namespace abele::host {
namespace {

class Prefetched : public Batches {
 public:
  Prefetched(std::unique_ptr<Batches> batches, int64_t buffer_size)
      : batches_(std::move(batches)), buffer_size_(static_cast<size_t>(buffer_size)) {}
  ~Prefetched() override { stop(); }

  void startPass() override {
    stop();
    ready_.clear();
    error_ = nullptr;
    is_over_ = is_stopping_ = false;
    thread_ = std::thread([this] { run(); });
  }

  bool next(Batch& batch) override {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return !ready_.empty() || is_over_; });
    if (!ready_.empty()) {
      batch = std::move(ready_.front());
      ready_.pop_front();
      changed_.notify_all();
      return true;
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return false;
  }

  int64_t size() const override { return batches_->size(); }

 private:
  void run() {
    runtime::setIntraOpThreads(1);  // the cores belong to the model
    try {
      batches_->startPass();
      for (Batch batch; batches_->next(batch); batch.clear())
        if (!put(std::move(batch))) return;
    } catch (...) {
      std::lock_guard lock(mu_);
      error_ = std::current_exception();
    }
    std::lock_guard lock(mu_);
    is_over_ = true;
    changed_.notify_all();
  }

  /// False when no more batches are wanted.
  bool put(Batch batch) {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return ready_.size() < buffer_size_ || is_stopping_; });
    if (is_stopping_) return false;
    ready_.push_back(std::move(batch));
    changed_.notify_all();
    return true;
  }

  void stop() {
    {
      std::lock_guard lock(mu_);
      is_stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  std::unique_ptr<Batches> batches_;  // of the thread while it runs
  size_t buffer_size_;
  std::mutex mu_;  // guards what follows, up to the thread
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  bool is_over_ = false, is_stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Batches> prefetched(std::unique_ptr<Batches> batches, int64_t buffer_size) {
  return std::make_unique<Prefetched>(std::move(batches), buffer_size);
}

}  // namespace abele::host
