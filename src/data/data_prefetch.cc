// A thread that makes batches ahead.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "data/data_batches.h"
#include "kernels/intra_op_threads.h"

namespace abele::data {
namespace {

class Prefetched : public Batches {
 public:
  Prefetched(std::unique_ptr<Batches> batches, int64_t buffer_size)
      : parts_(std::make_unique<Parts>(std::move(batches), static_cast<size_t>(buffer_size))) {}
  // A forked child has no such thread to end, and must not destroy what that thread waits on.
  ~Prefetched() override {
    if (home_.isHere())
      parts_->stop();
    else
      static_cast<void>(parts_.release());
  }

  void startPass() override {
    requireHere();
    parts_->startPass([](Batches& batches) { batches.startPass(); });
  }
  void seek(const LoaderPosition& position) override {
    requireHere();
    parts_->startPass([position](Batches& batches) { batches.seek(position); });
  }
  bool next(Batch& batch) override {
    requireHere();
    return parts_->next(batch);
  }
  int64_t size() const override { return parts_->batches->size(); }

 private:
  void requireHere() const {
    ABELE_REQUIRE(home_.isHere(), E0607,
                  {.what = "a data loader that was made before this process was forked off",
                   .found = "batches that a thread of the parent process makes",
                   .remedy = "make the data loader in this process, or with DataLoaderMode::kSync"});
  }

  struct Parts {
    Parts(std::unique_ptr<Batches> given, size_t size) : batches(std::move(given)), buffer_size(size) {}

    using Begin = std::function<void(Batches&)>;

    /// begin: called on the thread, like everything that requests samples.
    void startPass(Begin begin) {
      stop();
      ready.clear();
      error = nullptr;
      is_over = is_stopping = false;
      thread = std::thread([this, begin = std::move(begin)] { run(begin); });
    }

    bool next(Batch& batch) {
      std::unique_lock lock(mu);
      changed.wait(lock, [this] { return !ready.empty() || is_over; });
      if (!ready.empty()) {
        batch = std::move(ready.front());
        ready.pop_front();
        changed.notify_all();
        return true;
      }
      if (error) std::rethrow_exception(std::exchange(error, nullptr));
      return false;
    }

    void run(const Begin& begin) {
      kernels::setIntraOpThreads(1);  // the cores belong to the model
      try {
        begin(*batches);
        for (Batch batch; batches->next(batch); batch.clear())
          if (!put(std::move(batch))) return;
      } catch (...) {
        std::lock_guard lock(mu);
        error = std::current_exception();
      }
      std::lock_guard lock(mu);
      is_over = true;
      changed.notify_all();
    }

    /// Returns false if no more batches are wanted.
    bool put(Batch batch) {
      std::unique_lock lock(mu);
      changed.wait(lock, [this] { return ready.size() < buffer_size || is_stopping; });
      if (is_stopping) return false;
      ready.push_back(std::move(batch));
      changed.notify_all();
      return true;
    }

    void stop() {
      {
        std::lock_guard lock(mu);
        is_stopping = true;
        changed.notify_all();
      }
      if (thread.joinable()) thread.join();
    }

    std::unique_ptr<Batches> batches;  // owned by the thread while it runs
    size_t buffer_size;
    std::mutex mu;  // guards the members below, up to the thread
    std::condition_variable changed;
    std::deque<Batch> ready;
    std::exception_ptr error;
    bool is_over = false, is_stopping = false;
    std::thread thread;
  };

  const Home home_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace

std::unique_ptr<Batches> prefetched(std::unique_ptr<Batches> batches, int64_t buffer_size) {
  return std::make_unique<Prefetched>(std::move(batches), buffer_size);
}

}  // namespace abele::data
