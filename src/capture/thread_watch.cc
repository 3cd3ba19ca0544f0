#include "capture/thread_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "base/cat.h"
#include "capture/annotate.h"
#include "capture/arguments.h"
#include "capture/dispatch_mode.h"

namespace abele::capture {

// Torch's check of storages whose bytes a subclass holds elsewhere. Despite the name nothing is released.
void lockMemory(c10::StorageImpl& storage, bool locked) {
  locked ? storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kLockedRead)
         : storage.clear_data_ptr_access_error_msg_();
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

// RecordFunction::inputs() asserts, in units compiled without NDEBUG, a flag that a release build of torch never sets.
// So the member itself is named here, as an explicit instantiation may.
using Inputs = c10::ArrayRef<const c10::IValue>;
Inputs watchedInputsOf(const at::RecordFunction& function);
template <Inputs at::RecordFunction::*member>
struct WatchedInputs {
  friend Inputs watchedInputsOf(const at::RecordFunction& function) { return function.*member; }
};
template struct WatchedInputs<&at::RecordFunction::inputs_>;

/// Memory of a model that is being captured.
struct ModelMemory {
  bool is_locked = false;  // but for the readers
  int readers = 0;         // of other threads
};

/// All that is watched, by all captures of the process.
struct Watched {
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadWatch::Finding>> captures;
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<ThreadWatch::Finding>> storages;
  std::unordered_map<c10::StorageImpl*, ModelMemory> models;  // what is locked, or read by another thread
  // What operators of other threads made of memory of models, while something is captured.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> derived;
  at::CallbackHandle callback = 0;

  // With the mutex held. False where nothing is locked, and for threads that forward may have started: they work for
  // it.
  bool open(c10::StorageImpl* storage) {
    const auto found = models.find(storage);
    if (found == models.end()) return false;
    if (!std::ranges::all_of(captures, [](const auto& finding) { return finding->before.contains(::gettid()); }))
      return false;
    if (found->second.readers++ == 0) lockMemory(*storage, false);
    return true;
  }
  void close(c10::StorageImpl* storage) {
    const auto found = models.find(storage);
    if (--found->second.readers > 0) return;
    if (found->second.is_locked)
      lockMemory(*storage, true);
    else
      models.erase(found);
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

/// An operator of another thread that reads memory of a model, or what was made of some.
struct Reading : at::ObserverContext {
  std::vector<c10::Storage> opened;
};

std::unique_ptr<at::ObserverContext> beforeOperator(const at::RecordFunction& function) {
  std::shared_ptr<ThreadWatch::Finding> finding;
  std::unique_ptr<Reading> reading;
  {
    Watched& watched = Watched::instance();
    std::lock_guard lock(watched.mutex);
    if (takesPart(watched)) return nullptr;
    for (const c10::IValue& input : watchedInputsOf(function))
      forEachTensor(input, [&](int32_t, const at::Tensor& tensor) {
        if (!tensor.has_storage()) return;
        auto found = watched.storages.find(tensor.storage().unsafeGetStorageImpl());
        if (found != watched.storages.end()) finding = found->second;
        const bool is_open = watched.open(tensor.storage().unsafeGetStorageImpl());
        if (!is_open && !watched.derived.contains(tensor.storage().unsafeGetStorageImpl())) return;
        if (!reading) reading = std::make_unique<Reading>();
        if (is_open) reading->opened.push_back(tensor.storage());
      });
  }
  if (finding && !isView(function)) finding->note(function.name());
  return reading;
}

void afterOperator(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  if (!watched.captures.empty() && !isView(function))
    for (const c10::IValue& output : function.outputs())
      forEachTensor(output, [&](int32_t, const at::Tensor& tensor) {
        if (!tensor.has_storage()) return;
        c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
        if (!watched.models.contains(storage))
          watched.derived.insert_or_assign(storage, tensor.storage().getWeakStorageImpl());
      });
  for (const c10::Storage& storage : static_cast<Reading*>(context)->opened)
    watched.close(storage.unsafeGetStorageImpl());
}

// An operator that another thread began before it could be observed reads its operands long before this is over.
constexpr auto kGrace = std::chrono::milliseconds(1);

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
      watched.callback = at::addGlobalCallback(at::RecordFunctionCallback(beforeOperator, afterOperator)
                                                   .needsInputs(true)
                                                   .needsOutputs(true)
                                                   .scopes({at::RecordScope::FUNCTION}));
    watched.captures.push_back(finding_);
  }
  if (is_first) std::this_thread::sleep_for(kGrace);
}

ThreadWatch::~ThreadWatch() {
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  std::erase_if(watched.storages, [&](const auto& entry) { return entry.second == finding_; });
  std::erase(watched.captures, finding_);
  if (!watched.captures.empty()) return;
  at::removeCallback(watched.callback);
  watched.derived.clear();
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
  const auto found = watched.models.try_emplace(storage).first;
  found->second.is_locked = locked;
  if (found->second.readers > 0) return;  // the last of them does it
  lockMemory(*storage, locked);
  if (!locked) watched.models.erase(found);
}

void ThreadWatch::forget(const c10::StorageImpl* storage) {
  Watched& watched = Watched::instance();
  std::lock_guard lock(watched.mutex);
  watched.models.erase(const_cast<c10::StorageImpl*>(storage));
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

std::optional<std::string> ThreadWatch::found() const {
  std::lock_guard lock(finding_->mutex);
  return finding_->text;
}

}  // namespace abele::capture
