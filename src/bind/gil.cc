#include "bind/gil.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <unistd.h>

#include "base/error.h"
#include "bind/bind.h"

namespace py = pybind11;

namespace abele::bind {
namespace {

std::atomic<bool> ending{false};
std::atomic<int> asking{0};   // number of threads that are about to take the lock
std::atomic<int> running{0};  // number of calls and pieces of native code in progress
thread_local int own = 0;     // this thread's part of `running`
std::thread::id last;         // the thread that ends the interpreter; set before `ending`

constexpr auto kPatience = std::chrono::seconds(10);  // time for running kernels to end
constexpr auto kPeriod = std::chrono::milliseconds(1);

/// Runs at exit: from now on no thread takes the lock, and calls end.
void end() {
  last = std::this_thread::get_id();
  ending = true;
  const py::gil_scoped_release no_gil;
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while ((asking > 0 || running > own) && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(kPeriod);
}

}  // namespace

bool hasEnded() { return ending; }
bool isEnding() { return ending && std::this_thread::get_id() != last; }

GilRequest::GilRequest(Ended ended) {
  ++asking;  // before the check: either end() sees this thread, or this thread sees that the interpreter ends
  if (!isEnding()) return;
  --asking;
  if (ended == Ended::kThrow) throwUser(ErrorCode::E0602, {.what = "the interpreter ends"});
  running -= own;
  for (;;) ::pause();
}
GilRequest::~GilRequest() { --asking; }

NoGil::NoGil() {
  ++running;
  ++own;
  released_.emplace();
}
NoGil::~NoGil() {
  {
    const GilRequest request(GilRequest::Ended::kSleep);
    released_.reset();
  }
  --running;
  --own;
}

std::shared_ptr<py::object> kept(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (isEnding()) return;  // Python's objects must not be released any more
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

void enterCall() {
  if (isEnding()) NoGil{};
  ++running;
  ++own;
}
void leaveCall() {
  --running;
  --own;
  if (isEnding()) NoGil{};
}

void registerGil(py::module_& /*module*/) {
  py::module_::import("atexit").attr("register")(py::cpp_function(&end));
  // A forked child has one thread, so its counts start at 0.
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") =
                                                         py::cpp_function([] { asking = running = 0; }));
}

}  // namespace abele::bind
