// For users of the library: one model, many callers. Requests with any number of rows are joined into batches of
// the size that the model was compiled for, and each caller gets its own rows back. Read model.h first.
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
  /// Rows of one call: Options::combinedBatchSize. 0: those of the compiled model.
  int64_t batch_rows = 0;
  /// The longest time that a request waits for others to fill its batch.
  std::chrono::nanoseconds longest_wait = std::chrono::milliseconds(2);
  /// Rows that may wait: submit() waits for room, trySubmit() does not. One request may have more of them.
  int64_t most_waiting_rows = 1024;
  /// Shapes and types of requests, each of which has a compiled program of its own.
  int64_t most_shapes = 16;
};

/// Since the server was made. Times: from submit() to the answer, of the last 10,000 requests. Units: s.
struct ServerStatistics {
  int64_t requests = 0;      // that were answered, with results or with an error
  int64_t failed = 0;        // of these, with an error
  int64_t rows = 0;          // of these requests
  int64_t batches = 0;       // calls of the model that gave results
  int64_t filling_rows = 0;  // of batches that were not full
  int64_t waiting_rows = 0;  // now
  double p50_s = 0, p90_s = 0, p99_s = 0, longest_s = 0;
};

/// Requires: each result of the model has a fixed number of rows for each row of the batch
/// (OutputMode::kAll, the default of inference), and rows do not depend on one another.
/// Copies of a row fill a batch that is not full. If a batch fails, its requests run again in smaller
/// ones: only those that fail alone get the model's error. Threads: safe.
class ABELE_API Server {
 public:
  /// Throws E0705 if batch_rows is 0 and the model is not compiled, E0702.
  explicit Server(InferenceModel model, const ServerOptions& options = {});
  /// stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns the results of these rows, in order. Shapes: [rows, ...], any number of rows, even more than a batch.
  /// Throws E0708 for tensors without rows, E0704 for shapes beyond most_shapes, E0705 after stop(), and what the
  /// model throws.
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  std::vector<at::Tensor> operator()(const Inputs&... inputs) {
    return submit(inputs...).get();
  }
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);

  /// Returns a future and waits only if the queue is full. The future throws what the model throws.
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  std::future<std::vector<at::Tensor>> submit(const Inputs&... inputs) {
    return *submitFlat(detail::flattened(inputs...), /*wait=*/true);
  }
  std::future<std::vector<at::Tensor>> submit(const std::vector<at::Tensor>& inputs);
  /// Returns nothing if the queue is full.
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
