// Batcher: requests from Python threads. The model is a Python function.
#include <chrono>
#include <future>
#include <memory>

#include <pybind11/functional.h>

#include "bind/bind.h"
#include "bind/gil.h"
#include "data/batcher.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

using data::Batcher;

constexpr std::chrono::milliseconds kLookForSignals(50);

/// The result that a caller waits for. Threads: safe, under the GIL.
class Answer {
 public:
  explicit Answer(std::future<Batcher::Tensors> future) : future_(future.share()) {}

  bool isDone() const { return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  /// Returns true if the answer arrives within the time. timeout_s below 0: waits without limit.
  bool wait(double timeout_s) const {
    const std::shared_future<Batcher::Tensors> future = future_;
    const auto begin = std::chrono::steady_clock::now();
    const NoGil no_gil;
    while (true) {
      std::chrono::duration<double> slice = kLookForSignals;
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      if (timeout_s >= 0) slice = std::min(slice, std::chrono::duration<double>(timeout_s) - waited);
      if (future.wait_for(slice) == std::future_status::ready) return true;
      if (timeout_s >= 0 && waited.count() >= timeout_s) return false;
      if (hasEnded()) continue;
      const WithGil gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }
  /// Requires: isDone().
  Batcher::Tensors take() const { return future_.get(); }

 private:
  std::shared_future<Batcher::Tensors> future_;
};

/// Deletes without the GIL, because the end waits for a thread that takes it.
struct EndWithoutGil {
  void operator()(Batcher* batcher) const {
    const NoGil no_gil;
    delete batcher;
  }
};

py::dict statisticsOf(const Batcher& batcher) {
  using namespace py::literals;
  const ServerStatistics found = withoutGil([&] { return batcher.statistics(); });
  return py::dict("requests"_a = found.requests, "failed"_a = found.failed, "rows"_a = found.rows,
                  "batches"_a = found.batches, "filling_rows"_a = found.filling_rows,
                  "waiting_rows"_a = found.waiting_rows, "p50_s"_a = found.p50_s, "p90_s"_a = found.p90_s,
                  "p99_s"_a = found.p99_s, "longest_s"_a = found.longest_s);
}

}  // namespace

void registerServer(py::module_& module) {
  py::class_<Answer>(module, "Answer")
      .def("done", &Answer::isDone)
      .def("wait", &Answer::wait, py::arg("timeout_s"))
      .def("take", &Answer::take);
  py::class_<Batcher, std::unique_ptr<Batcher, EndWithoutGil>>(module, "Batcher")
      .def(py::init([](Batcher::Run run, int64_t batch_rows, double longest_wait_s, int64_t most_waiting_rows,
                       int64_t most_kinds) {
             const std::chrono::duration<double> wait(longest_wait_s);
             return std::unique_ptr<Batcher, EndWithoutGil>(
                 new Batcher(calledWithGil(std::move(run)),
                             {.batch_rows = batch_rows,
                              .longest_wait = std::chrono::duration_cast<std::chrono::nanoseconds>(wait),
                              .most_waiting_rows = most_waiting_rows,
                              .most_kinds = most_kinds}));
           }),
           py::arg("run"), py::arg("batch_rows"), py::arg("longest_wait_s"), py::arg("most_waiting_rows"),
           py::arg("most_kinds"))
      .def(
          "submit",
          [](Batcher& self, const std::string& form, const Batcher::Tensors& rows, bool wait) -> std::optional<Answer> {
            const NoGil no_gil;
            std::optional<std::future<Batcher::Tensors>> future = self.submit(form, rows, wait);
            if (!future) return {};
            return Answer(std::move(*future));
          },
          py::arg("form"), py::arg("rows"), py::arg("wait"))
      .def("stop", &Batcher::stop, py::call_guard<NoGil>())
      .def("statistics", statisticsOf);
}

}  // namespace abele::bind
