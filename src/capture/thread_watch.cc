#include "capture/thread_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/headeronly/version.h>

#include "base/cat.h"
#include "capture/annotate.h"
#include "capture/arguments.h"
#include "capture/dispatch_mode.h"

namespace abele::capture {

namespace {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
// Torch before 2.13 locks a storage, and has no call to unlock it. An explicit instantiation may name private members.
void unlock(c10::StorageImpl& storage);
template <auto kThrows, auto kRefresh>
struct Unlocking {
  friend void unlock(c10::StorageImpl& storage) {
    storage.*kThrows = false;
    (storage.*kRefresh)();
  }
};
template struct Unlocking<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                          &c10::StorageImpl::refresh_has_data_ptr_check>;
#else
void unlock(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#endif

}  // namespace

// Torch's check of storages whose bytes a subclass holds elsewhere. Despite the name nothing is released.
void lockMemory(c10::StorageImpl& storage, bool locked) {
  if (locked)
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kLockedRead);
  else
    unlock(storage);
}

namespace {

/// The threads that this process has.
std::set<pid_t> threadsNow() {
  std::set<pid_t> threads;
  std::error_code failed;  // then there are none: nothing opens
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", failed))
    threads.insert(static_cast<pid_t>(std::atoi(entry.path().filename().c_str())));
  return threads;
}

}  // namespace

struct ThreadWatch::Finding {
  std::function<std::string()> source_location;
  std::thread::id owner;
  std::set<pid_t> before = threadsNow();  // threads that are there without the forward that is captured
  mutable std::mutex mutex;
  std::optional<std::string> text;

  void note(const char* op) {
    const std::string line = source_location ? source_location() : std::string();
    std::lock_guard lock(mutex);
    if (!text) text = line.empty() ? op : cat(op, ", ", line);
  }
};

namespace {

/// Whom this thread works for; the capture may have ended.
std::shared_ptr<ThreadWatch::Finding>& served() {
  thread_local std::shared_ptr<ThreadWatch::Finding> capture;
  return capture;
}

// RecordFunction::inputs() asserts, in units compiled without NDEBUG, a flag that a release build of torch never sets.
// So the member itself is named here, as an explicit instantiation may.
using WatchedArray = c10::ArrayRef<const c10::IValue>;
WatchedArray watchedInputsOf(const at::RecordFunction& function);
template <WatchedArray at::RecordFunction::*member>
struct WatchedInputs {
  friend WatchedArray watchedInputsOf(const at::RecordFunction& function) { return function.*member; }
};
template struct WatchedInputs<&at::RecordFunction::inputs_>;

/// Memory that other threads may read.
struct Memory {
  // Of a model that is being captured: no other storage lies here meanwhile.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> models;
  bool is_locked = false;  // but for the readers
  int readers = 0;         // operators of other threads
};

/// All that is watched, by all captures of the process.
struct Watched {
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadWatch::Finding>> captures;
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<ThreadWatch::Finding>> storages;
  // What other threads read now, and all memory of models while something is captured. Readers count before the memory
  // is known to be a model's, and while the lock is open for an operator of the capture: either may lock it before they
  // have ended.
  std::unordered_map<c10::StorageImpl*, Memory> memory;
  // What operators of other threads made of memory of models, while something is captured.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> derived;
  at::CallbackHandle callback = 0;

  // With the mutex held. The capture that this thread works for.
  std::shared_ptr<ThreadWatch::Finding> servedHere() const {
    const bool runs = served() && std::ranges::find(captures, served()) != captures.end();
    return runs ? served() : nullptr;
  }
  // With the mutex held. False for threads that forward may have started: they work for it.
  bool open(c10::StorageImpl* storage) {
    if (servedHere()) return false;
    if (!std::ranges::all_of(captures, [](const auto& finding) { return finding->before.contains(::gettid()); }))
      return false;
    Memory& found = memory[storage];
    if (found.readers++ == 0 && found.models) lockMemory(*storage, false);
    return true;
  }
  bool isModels(c10::StorageImpl* storage) const {
    const auto found = memory.find(storage);
    return found != memory.end() && found->second.models.has_value();
  }
  void close(c10::StorageImpl* storage) {
    const auto found = memory.find(storage);
    if (--found->second.readers > 0) return;
    if (found->second.is_locked)
      lockMemory(*storage, true);
    else if (captures.empty() || !found->second.models)
      memory.erase(found);
  }

  static Watched& instance() {
    static auto* watched = new Watched;  // other threads may ask at exit
    return *watched;
  }
};

/// Do operators of this thread reach a capture, or run inside one that did?
bool takesPart(const Watched& watched) {
  const auto here = std::this_thread::get_id();
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python) || at::in_parallel_region() ||
         worksForCapture() ||
         std::ranges::any_of(watched.captures, [&](const auto& finding) { return finding->owner == here; });
}

/// Views compute nothing: what reads through one is noticed then.
bool isView(const at::RecordFunction& function) {
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  return !schema || std::ranges::any_of(schema->returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool drawsNumbers(const at::RecordFunction& function) {
  const std::optional<c10::OperatorName> name = function.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  return op && op->hasTag(at::Tag::nondeterministic_seeded);
}

/// An operator of another thread.
struct Reading : at::ObserverContext {
  std::vector<c10::Storage> opened;
  bool is_derived = false;  // it reads what was made of memory of a model
};

std::unique_ptr<at::ObserverContext> noteReads(const at::RecordFunction& function) {
  std::shared_ptr<ThreadWatch::Finding> finding;
  std::unique_ptr<Reading> reading;
  {
    Watched& watched = Watched::instance();
    std::lock_guard lock(watched.mutex);
    if (takesPart(watched)) return nullptr;
    if (const auto capture = watched.servedHere(); capture && drawsNumbers(function)) finding = capture;
    for (const c10::IValue& input : watchedInputsOf(function))
      forEachTensor(input, [&](int32_t, const at::Tensor& tensor) {
        if (!tensor.has_storage()) return;
        auto found = watched.storages.find(tensor.storage().unsafeGetStorageImpl());
        if (found != watched.storages.end()) finding = found->second;
        if (!reading) reading = std::make_unique<Reading>();
        reading->is_derived |= watched.derived.contains(tensor.storage().unsafeGetStorageImpl());
        if (watched.open(tensor.storage().unsafeGetStorageImpl())) reading->opened.push_back(tensor.storage());
      });
  }
  if (finding && !isView(function)) finding->note(function.name());
  return reading;
}

void noteEnd(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  const auto& reading = *static_cast<Reading*>(context);
  const bool is_derived = reading.is_derived || std::ranges::any_of(reading.opened, [&](const c10::Storage& storage) {
                            return watched.isModels(storage.unsafeGetStorageImpl());
                          });
  if (is_derived && !watched.captures.empty() && !isView(function))
    for (const c10::IValue& output : function.outputs())
      forEachTensor(output, [&](int32_t, const at::Tensor& tensor) {
        if (!tensor.has_storage()) return;
        c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
        if (!watched.isModels(storage))
          watched.derived.insert_or_assign(storage, tensor.storage().getWeakStorageImpl());
      });
  for (const c10::Storage& storage : reading.opened) watched.close(storage.unsafeGetStorageImpl());
}

// An operator that another thread began before it could be observed reads its operands long before the thread has run
// for so long.
constexpr auto kGrace = std::chrono::milliseconds(1);
// A thread that gets no core for so long is not waited for.
constexpr auto kStarved = std::chrono::milliseconds(500);

/// How long a thread of this process has run; none where it waits for something, has ended, or the kernel does not say.
std::optional<std::chrono::nanoseconds> runningTime(pid_t thread) {
  const std::string folder = cat("/proc/self/task/", thread, "/");
  std::ifstream stat(folder + "stat");
  std::string line;
  std::getline(stat, line);
  const size_t end_of_name = line.rfind(')');  // "12 (name) R 1 ..."
  if (end_of_name == std::string::npos || end_of_name + 2 >= line.size()) return std::nullopt;
  const char state = line[end_of_name + 2];
  if (state != 'R' && state != 'D') return std::nullopt;
  std::ifstream schedule(folder + "schedstat");
  int64_t nanoseconds = 0;
  if (!(schedule >> nanoseconds)) return std::nullopt;
  return std::chrono::nanoseconds(nanoseconds);
}

/// Returns when each of these threads has run for kGrace or waits: what it had begun by then has read its operands. A
/// thread that has no core now is waited for, which sleeping alone would not do.
void waitForOperators(const std::set<pid_t>& threads) {
  struct Running {
    pid_t thread;
    std::chrono::nanoseconds since;
    bool is_exact = false;  // the kernel counts by ticks: what it says first may be old by one
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<Running> running;
  for (const pid_t thread : threads)
    if (thread != ::gettid())
      if (const auto time = runningTime(thread)) running.push_back({thread, *time});
  do {
    std::this_thread::sleep_for(kGrace);
    std::erase_if(running, [](Running& one) {
      const auto time = runningTime(one.thread);
      if (!time) return true;
      if (one.is_exact) return *time - one.since >= kGrace;
      one.is_exact = *time != one.since;
      one.since = *time;
      return false;
    });
  } while (!running.empty() && std::chrono::steady_clock::now() - start < kStarved);
}

}  // namespace

ThreadWatch::ThreadWatch(std::function<std::string()> source_location) : finding_(std::make_shared<Finding>()) {
  finding_->source_location = std::move(source_location);
  finding_->owner = std::this_thread::get_id();
  Watched& watched = Watched::instance();
  bool is_first = false;
  {
    std::lock_guard lock(watched.mutex);
    is_first = watched.captures.empty();
    if (is_first)
      watched.callback = at::addGlobalCallback(at::RecordFunctionCallback(noteReads, noteEnd)
                                                   .needsInputs(true)
                                                   .needsOutputs(true)
                                                   .scopes({at::RecordScope::FUNCTION}));
    watched.captures.push_back(finding_);
  }
  if (is_first) waitForOperators(finding_->before);
}

ThreadWatch::~ThreadWatch() {
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  std::erase_if(watched.storages, [&](const auto& entry) { return entry.second == finding_; });
  std::erase(watched.captures, finding_);
  if (!watched.captures.empty()) return;
  at::removeCallback(watched.callback);
  watched.derived.clear();
  std::erase_if(watched.memory, [](const auto& entry) { return entry.second.readers == 0; });
}

void ThreadWatch::add(const c10::StorageImpl* storage) {
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  watched.storages.emplace(storage, finding_);
}

void ThreadWatch::remove(const c10::StorageImpl* storage) {
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  auto found = watched.storages.find(storage);
  if (found != watched.storages.end() && found->second == finding_) watched.storages.erase(found);
}

void ThreadWatch::setLocked(c10::StorageImpl* storage, bool locked) {
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  Memory& memory = watched.memory[storage];
  if (!memory.models) memory.models.emplace(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  memory.is_locked = locked;
  if (memory.readers == 0) lockMemory(*storage, locked);  // else the last of them does it
}

bool ThreadWatch::isMadeElsewhere(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  const auto found = watched.derived.find(tensor.storage().unsafeGetStorageImpl());
  // Another storage may lie where a dead one was.
  return found != watched.derived.end() && !found->second.expired();
}

std::shared_ptr<void> openMemory(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  const auto here = std::this_thread::get_id();
  if (std::ranges::any_of(watched.captures, [&](const auto& finding) { return finding->owner == here; })) return {};
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (!watched.open(storage)) return {};
  return {storage, [held = tensor.storage()](void*) {
            Watched& all = Watched::instance();
            std::lock_guard closing(all.mutex);
            all.close(held.unsafeGetStorageImpl());
          }};
}

std::shared_ptr<ThreadWatch::Finding> captureOfThread() {
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  const auto here = std::this_thread::get_id();
  const auto found =
      std::ranges::find_if(watched.captures, [&](const auto& finding) { return finding->owner == here; });
  return found == watched.captures.end() ? watched.servedHere() : *found;
}

WorksFor::WorksFor(std::shared_ptr<ThreadWatch::Finding> capture)
    : before_(std::exchange(served(), std::move(capture))) {}
WorksFor::~WorksFor() { served() = std::move(before_); }

std::shared_ptr<void> captureHere() { return captureOfThread(); }

std::shared_ptr<void> workFor(const std::shared_ptr<void>& capture) {
  return std::make_shared<WorksFor>(std::static_pointer_cast<ThreadWatch::Finding>(capture));
}

std::optional<std::string> ThreadWatch::found() const {
  std::lock_guard lock(finding_->mutex);
  return finding_->text;
}

}  // namespace abele::capture
