// Requests of many threads in batches of one size: what a Server of either language is over. It knows no model.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::host {

/// Threads: submit(), statistics() and stop() from any.
class Batcher {
 public:
  using Clock = std::chrono::steady_clock;
  using Tensors = std::vector<at::Tensor>;
  /// One call of the model: its arguments, built as the form says. Called on the batcher's thread.
  using Run = std::function<Tensors(const std::string& form, const Tensors& batch)>;
  struct Settings {
    int64_t batch_rows = 1;                    // of each call
    std::chrono::nanoseconds longest_wait{0};  // of a request for others to fill its batch
    int64_t most_waiting_rows = 1;             // in the queue; a request of more of them is let into an empty one
    int64_t most_kinds = 1;                    // of requests: each has a program of its own
  };
  struct Statistics {
    int64_t requests = 0, failed = 0, rows = 0, batches = 0, waiting_rows = 0;
    int64_t filling_rows = 0;                               // of batches that were not full
    double p50_s = 0, p90_s = 0, p99_s = 0, longest_s = 0;  // from submit() to the answer, of the last kKept requests
  };
  static constexpr size_t kKept = 10'000;
  static constexpr size_t kMostHopeless = 1000;  // kinds that are remembered to be wrong

  Batcher(Run run, Settings settings);
  /// stop().
  ~Batcher();

  /// rows: tensors with equal numbers of rows, any number of them. The answer: the same rows of the results, or what
  /// the model throws for them alone. Waits for room in the queue; with wait = false, nothing where there is none.
  /// Throws E0708 for what has no rows, E0704 for a kind of tensors that is one too many, E0705 behind stop(); for a
  /// kind that cannot be compiled, what the first request of it got.
  std::optional<std::future<Tensors>> submit(const std::string& form, const Tensors& rows, bool wait = true);
  /// Answers what was submitted and ends. Submitters that wait for room get E0705.
  void stop();
  Statistics statistics() const;

 private:
  /// What one caller waits for. Its rows may be in several batches.
  struct Answer {
    std::promise<Tensors> promise;
    std::vector<Tensors> parts;  // in the order of their rows
    int64_t rows = 0, rows_left = 0;
    std::exception_ptr error;
    Clock::time_point submitted;
  };
  /// What still waits of a request.
  struct Request {
    std::shared_ptr<Answer> answer;
    Tensors tensors;
    int64_t rows = 0;
  };
  /// Rows of one request in a batch.
  struct Piece {
    std::shared_ptr<Answer> answer;
    size_t index = 0;  // of its part of the answer
    Tensors tensors;
    int64_t rows = 0;
  };
  using Pieces = std::vector<Piece>;
  /// Of requests that can be in one batch. form: of their arguments; key: the same with types and sizes.
  struct Kind {
    std::string key, form;
  };
  struct Bucket {
    Kind kind;
    std::deque<Request> requests;
    int64_t rows = 0;
  };
  /// What a call gets. error: it could not be put together.
  struct Batch {
    Kind kind;
    Pieces pieces;
    Tensors tensors;
    int64_t filling_rows = 0;
    std::exception_ptr error;
  };

  bool isFull(const Bucket& bucket) const { return bucket.rows >= settings_.batch_rows; }
  /// The first thread: puts batches together, the next one while one runs.
  void makeBatches();
  /// The second thread: runs them and answers.
  void runBatches();
  /// The bucket to make a batch of now; null: none is full, and nobody has waited long enough.
  Bucket* due(Clock::time_point now);
  Clock::time_point firstDeadline() const;
  /// The first rows of a bucket, as many as a batch has room for. A request that does not fit is cut. Requires: the
  /// lock.
  Pieces takeRows(Bucket& bucket);
  Batch batchOf(Kind kind, Pieces pieces) const;
  void answer(Batch batch);
  /// Throws E0704, and what requests of a hopeless kind get. Requires: the lock.
  void requireKind(const std::string& key) const;
  bool isHopeless(const std::string& key) const;
  /// Called where the model has just thrown `error`. Remembers a kind that no request can be right in.
  void note(const std::string& key, const std::exception_ptr& error);
  /// Results by piece.
  std::vector<Tensors> call(const Batch& batch);
  void give(Piece& piece, Tensors results, const std::exception_ptr& error);
  void count(const Answer& answer);

  const Run run_;
  const Settings settings_;
  mutable std::mutex mu_;
  std::condition_variable arrived_, room_, made_;  // arrived_: or the second thread has no batch, or takes one
  std::map<std::string, Bucket> buckets_;          // by form, types and sizes; those without requests are removed
  int64_t waiting_rows_ = 0;
  std::set<std::string> kinds_;                         // by key, that the model has answered
  std::map<std::string, std::exception_ptr> hopeless_;  // by key, that it cannot be compiled for
  std::optional<Batch> next_;
  bool is_running_ = false, stopping_ = false, made_all_ = false;
  Statistics counts_;
  std::vector<double> latencies_;  // a ring
  size_t next_latency_ = 0;
  std::mutex joining_;  // of stop()
  std::thread maker_, runner_;
};

}  // namespace abele::host
