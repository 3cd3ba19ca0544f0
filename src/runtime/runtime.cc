#include "runtime/runtime.h"

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <typeinfo>

#include "base/error.h"
#include "base/fork.h"
#include "base/turns.h"
#include "runtime/pager.h"
#include "runtime/worker_threads.h"

namespace abele::runtime {
namespace {

using Clock = std::chrono::steady_clock;

using Poll = std::function<bool()>;

constexpr auto kPollPeriod = std::chrono::milliseconds(50);
constexpr int64_t kPollPeriodNs = std::chrono::nanoseconds(kPollPeriod).count();
// Number of looks at a counter before sleeping. They take about a microsecond, less than going to sleep and waking up.
constexpr int kSpins = 200;

int64_t newProgram() {
  static std::atomic<int64_t> count = 0;
  return count++;
}

std::string typeName(const std::type_info& type) {
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : type.name();
  std::free(text);
  return name;
}

}  // namespace

struct Runtime::Impl {
  Impl(const exe::Executable& executable, Backend& backend, int64_t process)
      : exe(executable),
        backend(backend),
        process(process),
        is_here(executable.segments.size(), false),
        completions(executable.segments.size() + 2),
        times(executable.workers.size()),
        sleeps(executable.workers.size()) {
    for (size_t w = 0; w < exe.workers.size(); ++w) {
      if (!isMine(w)) {
        devices.emplace_back();
        pagers.emplace_back();
        continue;
      }
      for (const exe::Action& action : exe.workers[w].actions) {
        is_here[static_cast<size_t>(action.segment)] = true;
        num_earlier += isLastUpdate(w, action) ? 0 : 1;
      }
      times[w].resize(exe.workers[w].actions.size());
      devices.push_back(backend.makeDevice(static_cast<int32_t>(w)));
      pagers.push_back(hasFetches(exe.workers[w]) && backend.movesOffChipMemory()
                           ? std::make_unique<Pager>(backend, exe.workers[w], exe.fetch_ahead)
                           : nullptr);
    }
    borrowThreads(false);
    waitForWorkers({});
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }

  ~Impl() {
    addBusy(threads->leave(program, [this](int32_t worker) { devices[worker]->detach(); }, [this] { addBusy(-1); }));
    waitForWorkers({});
  }

  bool isMine(size_t worker) const { return process == kAllProcesses || exe.workers[worker].process == process; }
  static bool hasFetches(const exe::WorkerProgram& worker) {
    return std::any_of(worker.actions.begin(), worker.actions.end(),
                       [](const exe::Action& action) { return !action.fetches.empty(); });
  }

  // --- worker threads ------------------------------------------------------------------------------------------------
  //
  // Borrows a thread for each worker here but one: the caller's thread works for worker 0 where it can. runs_step:
  // false only prepares the threads.
  void borrowThreads(bool runs_step) {
    for (size_t w = caller_works ? 1 : 0; w < exe.workers.size(); ++w) {
      if (!isMine(w)) continue;
      const auto worker = static_cast<int32_t>(w);
      addBusy(1);
      try {
        threads->run({worker, program, [=, this](bool moves_in) { return work(worker, moves_in, runs_step); },
                      [this] { addBusy(-1); }});
      } catch (const std::system_error& error) {
        fail(std::make_exception_ptr(UserError(
            ErrorCode::E0601, {.what = cat("a thread for worker ", worker, " cannot start"), .found = error.what()})));
        abandon();
        addBusy(-1);
      }
    }
  }

  // Returns true if the thread is prepared for the worker.
  bool work(int32_t worker, bool moves_in, bool runs_step) {
    try {
      if (moves_in) devices[worker]->attach();
    } catch (...) {
      fail(std::current_exception());
      abandon();
      return false;
    }
    if (!runs_step) return true;
    const WorksFor caller_of_step(caller);
    std::fesetenv(&arithmetic);
    if (!runActions(worker, {})) abandon();
    return true;
  }

  void addBusy(int64_t change) {
    const std::lock_guard lock(mutex);
    busy += change;
    if (busy == 0) all_parked.notify_all();
  }

  // State of a worker that sleeps until its wait is over.
  struct Sleep {
    std::condition_variable over;
    const exe::Wait* wait = nullptr;  // guarded by mutex; null: awake
  };

  // Returns false if the worker left actions undone. poll: only on the caller's thread, which checks for interruptions
  // itself.
  bool runActions(int32_t worker, const Poll& poll) {
    const auto& actions = exe.workers[worker].actions;
    Pager* const pager = pagers[worker].get();
    for (size_t i = 0; i < actions.size(); ++i) {
      const exe::Action& action = actions[i];
      // Either all or none of a step's last updates run. They wait for every backward, so only a worker that gave up
      // earlier can stop them, and then it stops all of them. Other actions give up as soon as the step is aborted.
      const bool is_last_update = isLastUpdate(static_cast<size_t>(worker), action);
      const std::atomic<bool>& gives_up = is_last_update ? abandoned : aborted;
      if (poll && now() - last_poll_ns >= kPollPeriodNs) checkInterruption(poll);
      if (is_last_update && !passAgreement(worker, poll)) return false;
      for (const exe::Wait& wait : action.waits)
        if (is_here[static_cast<size_t>(wait.segment)] && !waitFor(worker, wait, gives_up, poll)) return false;
      if (gives_up.load()) return false;
      const ActionContext context{worker, action.segment, action.micro_batch,
                                  static_cast<int32_t>(action.micro_batch % exe.accumulation), steps};
      int64_t begin_ns = 0;
      try {
        if (pager) pager->before(i);
        begin_ns = now();
        devices[worker]->run(context);
        if (pager) pager->after(i);
      } catch (...) {
        fail(withContext(context));
        return false;
      }
      times[worker][i] = {worker, action.segment, action.micro_batch, begin_ns, now()};
      completions[action.segment].fetch_add(1);
      if (!is_last_update) completions[earlierActions()].fetch_add(1);
      // Only those that can continue: with more workers than cores, waking the others would cost time for nothing.
      wakeSleepers();
    }
    return true;
  }

  // Sums over processes are not among them: they change no weight, and updates wait for them.
  bool isLastUpdate(size_t worker, const exe::Action& action) const {
    return exe.segments[action.segment].direction == exe::Direction::kUpdate &&
           action.micro_batch == exe.micro_batches - 1 && !exe::addsUp(exe.workers[worker]);
  }

  // --- other processes with stages of the same replica ---------------------------------------------------------------
  //
  // Two counters follow those of the segments: the completed actions before the last updates, and whether all processes
  // have agreed.
  int32_t earlierActions() const { return static_cast<int32_t>(exe.segments.size()); }
  int32_t agreed() const { return static_cast<int32_t>(exe.segments.size()) + 1; }
  bool needsAgreement() const { return process != kAllProcesses && exe.stage_processes > 1; }

  // No last update runs before all processes have come as far, so that either all of them update or none. The first
  // worker that gets here asks the other processes. Returns false if this worker gives up.
  bool passAgreement(int32_t worker, const Poll& poll) {
    if (!needsAgreement()) return true;
    if (!waitFor(worker, {earlierActions(), num_earlier}, abandoned, poll)) return false;
    if (asked.exchange(true)) return waitFor(worker, {agreed(), 1}, abandoned, poll);
    if (abandoned.load() || !agree()) return false;
    completions[agreed()].fetch_add(1);
    wakeSleepers();
    return true;
  }

  bool agree() {
    try {
      backend.agree();
      return true;
    } catch (...) {
      fail(std::current_exception());
      return false;
    }
  }

  void abandon() {
    std::lock_guard lock(mutex);
    abandoned.store(true);
    wakeAll();
  }

  bool isReached(const exe::Wait& wait) const { return completions[wait.segment].load() >= wait.completions; }

  // Returns false if the worker has to give up.
  bool waitFor(int32_t worker, const exe::Wait& wait, const std::atomic<bool>& gives_up, const Poll& poll) {
    for (int i = 0; i < kSpins; ++i)
      if (isReached(wait)) return true;
    std::unique_lock lock(mutex);
    // The order of these steps matters. A worker that completes an action first adds to the counter, then looks for
    // sleepers. A worker that sleeps first counts itself as a sleeper, then looks at the counter. So one of the two
    // sees the other.
    sleepers.fetch_add(1);
    Sleep& sleep = sleeps[worker];
    sleep.wait = &wait;
    const auto is_over = [&] { return isReached(wait) || gives_up.load(); };
    while (poll && !sleep.over.wait_for(lock, kPollPeriod, is_over)) {
      lock.unlock();
      checkInterruption(poll);
      lock.lock();
    }
    sleep.over.wait(lock, is_over);
    sleep.wait = nullptr;
    sleepers.fetch_sub(1);
    return isReached(wait);
  }

  void wakeSleepers() {
    if (sleepers.load() == 0) return;
    const std::lock_guard lock(mutex);  // no worker is between its look at the counter and its sleep
    for (Sleep& sleep : sleeps)
      if (sleep.wait && isReached(*sleep.wait)) sleep.over.notify_one();
  }

  // Requires: the mutex is held.
  void wakeAll() {
    for (Sleep& sleep : sleeps) sleep.over.notify_one();
  }

  // --- errors --------------------------------------------------------------------------------------------------------
  //
  // The exception that is being handled, with the context that the caller of run() needs.
  std::exception_ptr withContext(const ActionContext& context) const {
    const exe::Segment& segment = exe.segments[context.segment];
    const std::string place = cat(segment.name, " (", directionName(segment.direction), " of stage ", segment.stage,
                                  "), micro-batch ", context.micro_batch, ", on worker ", context.worker);
    auto wrap = [&](std::string what, std::string found) {
      UserError error(ErrorCode::E0601, {.what = std::move(what), .found = std::move(found)});
      error.addContext(place);
      return std::make_exception_ptr(error);
    };
    try {
      throw;
    } catch (Error& error) {
      error.addContext(place);
      return std::current_exception();
    } catch (const std::exception& error) {
      return wrap(error.what(), typeName(typeid(error)));
    } catch (...) {
      const std::type_info* type = abi::__cxa_current_exception_type();
      return wrap("a kernel threw an object that is not a std::exception", type ? typeName(*type) : "");
    }
  }

  // Keeps the first error of a step and wakes all workers.
  void fail(std::exception_ptr first) {
    std::lock_guard lock(mutex);
    failLocked(std::move(first));
  }

  void failLocked(std::exception_ptr first) {
    if (!error) error = std::move(first);
    aborted.store(true);
    backend.interrupt();
    wakeAll();
  }

  static std::exception_ptr interruption() {
    return std::make_exception_ptr(
        UserError(ErrorCode::E0602, {.what = "the step was interrupted", .remedy = "call the model again"}));
  }

  void interrupt() {
    std::lock_guard lock(mutex);
    if (is_running) failLocked(interruption());
  }

  // --- the caller's thread -------------------------------------------------------------------------------------------
  //
  // Does worker 0's part itself if its thread is prepared like a worker's. That saves a hand-over. The caller's own
  // operators also find a warm thread pool: libgomp makes waiting threads sleep at once if the pools have more threads
  // than there are cores.
  const StepReport& run(const Poll& poll) {
    backend.begin(steps);
    for (auto& counter : completions) counter.store(0);
    {
      std::lock_guard lock(mutex);
      aborted.store(false);
      abandoned.store(false);
      asked.store(false);
      error = nullptr;
      begin = Clock::now();
      caller = currentCaller();
      std::fegetenv(&arithmetic);
      caller_works = !exe.workers.empty() && isMine(0) && backend.canWorkOnThisThread(0);
      last_poll_ns = 0;
      is_running = true;
    }
    borrowThreads(true);
    if (caller_works && !runActions(0, poll)) abandon();
    waitForWorkers(poll);
    {
      const std::lock_guard lock(mutex);
      is_running = false;
    }
    // For a process without last updates of its own.
    if (needsAgreement() && !abandoned.load() && !asked.exchange(true) && !agree()) abandon();
    report.wall_ns = now();
    // An interruption may come too late to stop anything. Then the step counts, but its caller still gets the error.
    const bool completed = !abandoned.load();
    if (!completed)
      for (const std::unique_ptr<Pager>& pager : pagers)
        if (pager) pager->reset();
    backend.finish(completed);
    if (completed) ++steps;
    // No lock: only the workers and poll() set it, and both are done.
    if (std::exception_ptr first = std::exchange(error, nullptr)) std::rethrow_exception(first);
    report.begin = std::chrono::nanoseconds(begin.time_since_epoch()).count();
    report.paging.clear();
    for (size_t w = 0; w < pagers.size(); ++w)
      if (pagers[w]) pagers[w]->takeTimes(static_cast<int32_t>(w), begin, report.paging);
    report.actions.clear();
    for (const auto& worker_times : times)
      report.actions.insert(report.actions.end(), worker_times.begin(), worker_times.end());
    return report;
  }

  void waitForWorkers(const Poll& poll) {
    auto parked = [&] { return busy == 0; };
    std::unique_lock lock(mutex);
    while (poll && !all_parked.wait_for(lock, kPollPeriod, parked)) {
      lock.unlock();
      checkInterruption(poll);
      lock.lock();
    }
    all_parked.wait(lock, parked);
  }

  // Calls poll, and fails the step if poll asks for an interruption or throws.
  void checkInterruption(const Poll& poll) {
    last_poll_ns = now();
    bool stop_now = false;
    try {
      stop_now = poll();
    } catch (...) {
      fail(std::current_exception());
    }
    if (stop_now) fail(interruption());
  }

  int64_t now() const { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count(); }

  const exe::Executable& exe;
  Backend& backend;
  const int64_t process;                          // the process whose workers run here, or kAllProcesses
  std::vector<char> is_here;                      // by segment: a worker of this process runs it
  std::vector<std::unique_ptr<Device>> devices;   // by worker, used by its thread only; null: in another process
  std::vector<std::unique_ptr<Pager>> pagers;     // by worker, used by its thread only; null: no memory to move
  std::vector<std::atomic<int64_t>> completions;  // by segment, of this step; then earlierActions() and agreed()
  int64_t num_earlier = 0;                        // number of actions here before the last updates
  std::vector<std::vector<ActionTime>> times;     // by worker
  std::atomic<bool> aborted = false;              // a worker failed, or the step was interrupted
  std::atomic<bool> abandoned = false;            // a worker left actions undone because of that
  std::atomic<bool> asked = false;                // a worker asks the other processes, or has asked them
  std::atomic<int> sleepers = 0;

  std::mutex mutex;
  std::condition_variable all_parked;
  std::vector<Sleep> sleeps;  // by worker
  int64_t busy = 0;           // borrowed threads; guarded by mutex, as are all members below
  bool is_running = false;
  bool caller_works = false;  // in this step the caller's thread does worker 0's work
  Caller* caller = nullptr;   // caller of this step
  std::fenv_t arithmetic{};   // the rounding mode of its thread, and its treatment of denormal numbers
  std::exception_ptr error;

  // The caller writes these while the workers are parked.
  int64_t steps = 0;
  int64_t last_poll_ns = 0;
  Clock::time_point begin = Clock::now();
  StepReport report;
  const Home home;
  const std::shared_ptr<WorkerThreads> threads = WorkerThreads::ofProcess();
  const int64_t program = newProgram();  // its number there
};

Runtime::Runtime(const exe::Executable& executable, Backend& backend, int64_t process)
    : impl_(std::make_unique<Impl>(executable, backend, process)) {}
// A forked child has no threads to end, and cannot destroy the objects that they sleep on, so it leaves all of it
// alone.
Runtime::~Runtime() {
  if (!impl_->home.isHere()) static_cast<void>(impl_.release());
}
const StepReport& Runtime::run(const std::function<bool()>& poll) {
  ABELE_REQUIRE(impl_->home.isHere(), E0607,
                {.what = "the workers of this model are threads of the parent process, from which this one was forked",
                 .remedy = "compile the model in this process"});
  return impl_->run(poll);
}
void Runtime::abort() { impl_->interrupt(); }

}  // namespace abele::runtime
