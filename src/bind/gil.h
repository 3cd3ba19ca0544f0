// For bind/ only: releasing and taking Python's global lock in threads that may outlive the interpreter.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <torch/csrc/utils/pybind.h>

namespace abele::bind {

/// If a daemon thread takes the lock after the interpreter has ended, CPython ends the thread in the middle of C++
/// code, which aborts the process. To avoid this, running calls are interrupted before the end (isEnding), callbacks
/// throw E0602, and threads that would return to Python sleep for ever.
class GilRequest {
 public:
  enum class Ended { kSleep, kThrow };  // what a thread does if the interpreter has ended
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

template <class Work>
auto withoutGil(const Work& work) {
  const NoGil no_gil;
  return work();
}

/// Python code that native code calls. Throws E0602 if the interpreter is about to end.
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

/// A Python object that C++ keeps. It is released under the GIL.
std::shared_ptr<pybind11::object> kept(pybind11::object object);

/// Makes a Python function callable from native code. None stays empty.
template <class Result, class... Arguments>
std::function<Result(Arguments...)> calledWithGil(std::function<Result(Arguments...)> function) {
  if (!function) return function;
  return [function = std::move(function)](Arguments... arguments) {
    const WithGil gil;
    return function(std::forward<Arguments>(arguments)...);
  };
}

/// Returns true if calls of this thread must stop, because the interpreter ends.
bool isEnding();
/// Returns true if the interpreter ends, on any thread. A thread that waits for another one must then stop waiting,
/// because the other may sleep for ever.
bool hasEnded();

/// Call these before and after a call of an executor, including its Python code, because torch's own operators also
/// release the lock and take it again. When the interpreter ends, it waits for the call, and the thread sleeps before
/// or after the call. Requires: the GIL.
void enterCall();
void leaveCall();

}  // namespace abele::bind
