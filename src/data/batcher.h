// Joins requests of many threads into batches of one size, for the Server of both languages. Does not know the model.
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

#include "abele/server.h"

namespace abele::data {

/// Threads: submit(), statistics() and stop() from any thread.
class Batcher {
 public:
  using Clock = std::chrono::steady_clock;
  using Tensors = std::vector<at::Tensor>;
  /// Calls the model with arguments in the form. Runs on the batcher's thread.
  using Run = std::function<Tensors(const std::string& form, const Tensors& batch)>;
  struct Settings {
    int64_t batch_rows = 1;                    // rows of each call
    std::chrono::nanoseconds longest_wait{0};  // the longest time that a request waits for others to fill its batch
    int64_t most_waiting_rows = 1;             // rows in the queue; a larger request may enter an empty queue
    int64_t most_kinds = 1;                    // largest number of kinds of requests; each has a program
  };
  static constexpr size_t kKept = 10'000;        // number of the last requests whose latencies count
  static constexpr size_t kMostHopeless = 1000;  // largest number of remembered kinds that cannot be compiled

  Batcher(Run run, Settings settings);
  /// Calls stop().
  ~Batcher();

  /// rows: tensors that all have the same number of rows, any number. Returns a future of the same rows of the results,
  /// or of the error that the model throws for these rows alone. Waits for room in the queue; with wait = false returns
  /// nothing if the queue is full. Throws E0708 for tensors without rows, E0704 for a kind beyond most_kinds, E0705
  /// after stop(). A kind that cannot be compiled gets the error of its first request.
  std::optional<std::future<Tensors>> submit(const std::string& form, const Tensors& rows, bool wait = true);
  /// Answers all submitted requests and ends. Threads that wait for room get E0705.
  void stop();
  ServerStatistics statistics() const;

 private:
  /// The results for one caller. Its rows may be in several batches.
  struct Answer {
    std::promise<Tensors> promise;
    std::vector<Tensors> parts;  // in the order of their rows
    int64_t rows = 0, rows_left = 0;
    std::exception_ptr error;
    Clock::time_point submitted;
  };
  /// The part of a request that is still in the queue.
  struct Request {
    std::shared_ptr<Answer> answer;
    Tensors tensors;
    int64_t rows = 0;
  };
  /// Rows of one request in a batch.
  struct Piece {
    std::shared_ptr<Answer> answer;
    size_t index = 0;  // index in Answer::parts
    Tensors tensors;
    int64_t rows = 0;
  };
  using Pieces = std::vector<Piece>;
  /// A kind of requests that can share a batch. form: the form of their arguments; key: form, types and sizes.
  struct Kind {
    std::string key, form;
  };
  struct Bucket {
    Kind kind;
    std::deque<Request> requests;
    int64_t rows = 0;
  };
  /// The arguments of a call. error: they could not be joined.
  struct Batch {
    Kind kind;
    Pieces pieces;
    Tensors tensors;
    int64_t filling_rows = 0;
    std::exception_ptr error;
  };

  bool isFull(const Bucket& bucket) const { return bucket.rows >= settings_.batch_rows; }
  /// Runs on the first thread: makes the next batch while one runs.
  void makeBatches();
  /// Runs on the second thread: runs batches and answers.
  void runBatches();
  /// The bucket from which to make a batch now; null if none is full and none has waited long enough.
  Bucket* due(Clock::time_point now);
  Clock::time_point firstDeadline() const;
  /// The first rows of a bucket that a batch has room for. Cuts a request that does not fit. Requires: the lock.
  Pieces takeRows(Bucket& bucket);
  Batch batchOf(Kind kind, Pieces pieces) const;
  void answer(Batch batch);
  /// Throws E0704 for a kind beyond most_kinds, or the error of a kind that cannot be compiled. Requires: the lock.
  void requireKind(const std::string& key) const;
  bool isHopeless(const std::string& key) const;
  /// Called when the model has thrown `error`. Remembers the kind if no request of it can succeed.
  void note(const std::string& key, const std::exception_ptr& error);
  /// Returns the results by piece.
  std::vector<Tensors> call(const Batch& batch);
  void give(Piece& piece, Tensors results, const std::exception_ptr& error);
  void count(const Answer& answer);

  const Run run_;
  const Settings settings_;
  mutable std::mutex mu_;
  std::condition_variable arrived_, room_, made_;  // arrived_: also signalled if the second thread has no batch, or
                                                   // takes one
  std::map<std::string, Bucket> buckets_;          // by form, types and sizes; empty ones are removed
  int64_t waiting_rows_ = 0;
  std::set<std::string> kinds_;                         // keys that the model has answered
  std::map<std::string, std::exception_ptr> hopeless_;  // by key: the error of kinds that cannot be compiled
  std::optional<Batch> next_;
  bool is_running_ = false, stopping_ = false, made_all_ = false;
  ServerStatistics counts_;
  std::vector<double> latencies_;  // a ring buffer
  size_t next_latency_ = 0;
  std::mutex joining_;  // for stop()
  std::thread maker_, runner_;
};

}  // namespace abele::data
