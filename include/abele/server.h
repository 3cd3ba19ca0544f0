// For users of the library: one model, many callers. The server joins requests with any number of rows into batches of
// the size that the model was compiled for, and returns to each caller its own rows. Read model.h first.
//
//   abele::Server server(abele::loadInferenceModel("net.poptorch"));
//   auto out = server(x)[0];                           // from any number of threads
//   std::future<std::vector<at::Tensor>> later = server.submit(x, mask);
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "abele/export.h"
#include "abele/model.h"

namespace abele {

struct ServerOptions {
  /// Rows of one call: Options::combinedBatchSize. 0: the rows of the compiled model.
  int64_t batch_rows = 0;
  /// The longest time that a request waits for others to fill its batch.
  std::chrono::nanoseconds longest_wait = std::chrono::milliseconds(2);
  /// Largest number of rows in the queue. If it is full, submit() waits and trySubmit() returns nothing. A single
  /// request may have more rows.
  int64_t most_waiting_rows = 1024;
  /// Largest number of different shapes and types of requests. Each has its own compiled program.
  int64_t most_shapes = 16;
};

/// Counts since the server was made. Times: from submit() to the answer, over the last 10,000 requests. Units: s.
struct ServerStatistics {
  int64_t requests = 0;      // answered, with results or with an error
  int64_t failed = 0;        // answered with an error
  int64_t rows = 0;          // rows of the answered requests
  int64_t batches = 0;       // calls of the model that gave results
  int64_t filling_rows = 0;  // rows added to fill batches
  int64_t waiting_rows = 0;  // rows in the queue now
  double p50_s = 0, p90_s = 0, p99_s = 0, longest_s = 0;
};

/// Requires: each result of the model has a fixed number of rows per row of the batch (OutputMode::kAll, the default of
/// inference), and rows do not depend on each other.
/// The server fills an incomplete batch with copies of a row. If a batch fails, its requests run again in smaller
/// batches, so only requests that fail alone get the model's error. Threads: safe.
class ABELE_API Server {
 public:
  /// Throws E0705 if batch_rows is 0 and the model is not compiled, E0702.
  explicit Server(InferenceModel model, const ServerOptions& options = {});
  /// Calls stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns the results of these rows, in order. Shapes: [rows, ...], with any number of rows, even more than a batch.
  /// Throws E0708 for tensors without rows, E0704 for shapes beyond most_shapes, E0705 after stop(), and any error of
  /// the model.
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  std::vector<at::Tensor> operator()(const Inputs&... inputs) {
    return submit(inputs...).get();
  }
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);

  /// Returns a future. Waits only if the queue is full. The future rethrows errors of the model.
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  std::future<std::vector<at::Tensor>> submit(const Inputs&... inputs) {
    return *submitFlat(detail::flattened(inputs...), /*wait=*/true);
  }
  std::future<std::vector<at::Tensor>> submit(const std::vector<at::Tensor>& inputs);
  /// As submit(), but returns nothing if the queue is full.
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  std::optional<std::future<std::vector<at::Tensor>>> trySubmit(const Inputs&... inputs) {
    return submitFlat(detail::flattened(inputs...), /*wait=*/false);
  }

  /// Answers submitted requests, and refuses later ones.
  void stop();
  ServerStatistics statistics() const;

 private:
  std::optional<std::future<std::vector<at::Tensor>>> submitFlat(const detail::Flat& inputs, bool wait);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele
