// For bind/ only: letting go of Python's global lock, and taking it, in threads that may outlive the interpreter.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <torch/csrc/utils/pybind.h>

namespace abele::bind {

/// Where a daemon thread asks for the lock after the interpreter has ended, CPython ends the thread, in the middle of
/// C++ code, which aborts the process. So before that happens: calls that run are interrupted (isEnding), callbacks
/// throw E0602, and threads that would go back to Python sleep for ever.
class GilRequest {
 public:
  enum class Ended { kSleep, kThrow };  // what a thread does that comes too late
  explicit GilRequest(Ended ended);
  ~GilRequest();
  GilRequest(const GilRequest&) = delete;
  GilRequest& operator=(const GilRequest&) = delete;
};

/// Native code that runs without the lock.
class __attribute__((visibility("hidden"))) NoGil {
 public:
  NoGil();
  ~NoGil();
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

/// Python code that native code calls. Throws E0602 when the interpreter is about to end.
class __attribute__((visibility("hidden"))) WithGil {
 public:
  WithGil() {
    const GilRequest request(GilRequest::Ended::kThrow);
    acquired_.emplace();
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  std::optional<pybind11::gil_scoped_acquire> acquired_;
};

/// A Python object that C++ keeps, let go of under the GIL.
std::shared_ptr<pybind11::object> kept(pybind11::object object);

/// A function of Python's for native code. None stays empty.
template <class Result, class... Arguments>
std::function<Result(Arguments...)> calledWithGil(std::function<Result(Arguments...)> function) {
  if (!function) return function;
  return [function = std::move(function)](Arguments... arguments) {
    const WithGil gil;
    return function(std::forward<Arguments>(arguments)...);
  };
}

/// Shall calls of this thread stop, because the interpreter ends?
bool isEnding();
/// Does it end at all? Who waits for another thread then may wait for one that sleeps for ever.
bool hasEnded();

/// Around the calls of an executor, Python code included: torch's own operators, too, let go of the lock and come back.
/// When the interpreter ends, the call is waited for, and its thread sleeps before or behind it. Requires: the GIL.
void enterCall();
void leaveCall();

}  // namespace abele::bind
