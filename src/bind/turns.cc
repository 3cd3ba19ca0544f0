// Turns as a context manager, which executors lock.
#include "base/turns.h"

#include "bind/bind.h"
#include "bind/gil.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

/// Turns of an object that Python locks. The caller that holds it may enter again. This lock allows all calls
/// within a step; the core refuses those that cannot run (E0608).
class Lock {
 public:
  Lock(std::shared_ptr<Turns> turns, std::string what) : what_(std::move(what)), turns_(std::move(turns)) {}

  void enter() {
    enterCall();
    if (turns_->isMine()) {
      ++depth_;
      return;
    }
    try {
      wait();
    } catch (...) {
      leaveCall();
      throw;
    }
    depth_ = 1;
  }
  void leave() {
    if (--depth_ == 0) turns_->unlock();
    leaveCall();
  }

 private:
  void wait() {
    const NoGil no_gil;  // the holder may need the GIL to continue
    turns_->lock(what_.c_str(), [] {
      if (hasEnded()) return true;
      const WithGil gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      return false;
    });
  }

  const std::string what_;
  const std::shared_ptr<Turns> turns_;
  int depth_ = 0;  // guarded by the GIL
};

}  // namespace

py::object lockOf(std::shared_ptr<Turns> turns, std::string what) {
  return py::cast(Lock(std::move(turns), std::move(what)));
}

void registerTurns(py::module_& module) {
  py::class_<Lock>(module, "Turns").def("__enter__", &Lock::enter).def("__exit__", [](Lock& self, const py::args&) {
    self.leave();
  });
}

}  // namespace abele::bind
