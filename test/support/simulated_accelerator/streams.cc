// Streams are threads with a queue; markers are what events record.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <thread>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "device.h"
#include "simulated.h"

namespace simulated {

struct Marker {
  int device = 0;
  Clock clock;
  std::mutex mutex;
  std::condition_variable reached;
  bool is_reached = false;
};

namespace {

// Of the process: the judge sees jobs in the order in which they are enqueued.
struct World {
  std::mutex mutex;
  History history;
  Clock host;  // what host threads have waited for: all that is enqueued later comes after it
  std::vector<std::string> findings;
  std::exception_ptr errors[kDevices];
  uint64_t delays = 0;
  int64_t jobs = 0, host_waits = 0;
};
World& world() {
  static auto* const instance = new World;  // streams outlive static objects
  return *instance;
}

// Kernels of ours use one thread, and change the number of nobody else.
void useOneThread() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  int process_default = 0;
  std::thread([&] { process_default = at::get_num_threads(); }).join();
  at::get_num_threads();
  at::set_num_threads(1);
  std::thread([&] { at::set_num_threads(process_default); }).join();
}

class Stream {
 public:
  explicit Stream(int index) : index_(index) {
    std::thread([this] { work(); }).detach();  // never ends
  }
  // With the world's lock held.
  void push(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    posted_.notify_one();
  }
  bool isIdle() {
    const std::lock_guard lock(mutex_);
    return jobs_.empty() && !busy_;
  }
  Clock& tick() {
    const auto at = static_cast<size_t>(index_);
    join(clock_, world().host);
    if (clock_.size() <= at) clock_.resize(at + 1, 0);
    ++clock_[at];
    return clock_;
  }
  Clock& clock() { return clock_; }
  int index() const { return index_; }
  std::shared_ptr<Capture> capture;  // guarded by the world's mutex

 private:
  void work() {
    useOneThread();
    std::mt19937_64 random;
    uint64_t seed = 0;
    for (;;) {
      std::unique_lock lock(mutex_);
      busy_ = false;
      posted_.wait(lock, [this] { return !jobs_.empty(); });
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      if (const uint64_t now = world().delays; now != seed) random.seed((seed = now) + static_cast<uint64_t>(index_));
      if (seed != 0 && random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      job();
    }
  }
  const int index_;
  Clock clock_;  // guarded by the world's mutex
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
};

constexpr int kPool = 16;  // streams of a device that torch takes in turn, beside its default one
constexpr int kOwn = 64;   // those that one user has alone
constexpr int kStreams = 1 + kPool + kOwn;

// Streams are numbered through all devices; of a device, 0 is the default one. Null: nobody has used it.
Stream* streamAt(int device, int number, bool makes) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<Stream>>(kDevices * kStreams);
  const std::lock_guard lock(mutex);
  const int index = device * kStreams + number;
  auto& made = all->at(static_cast<size_t>(index));
  if (!made && makes) made = std::make_unique<Stream>(index);
  return made.get();
}
Stream& stream(int device, int number) { return *streamAt(device, number, /*makes=*/true); }

thread_local int current_device = 0;
thread_local int current_streams[kDevices] = {};

void throwError(int device) {
  std::exception_ptr error;
  {
    const std::lock_guard lock(world().mutex);
    error = std::exchange(world().errors[device], nullptr);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

int currentDevice() { return current_device; }
void setCurrentDevice(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no device simulated:", device);
  current_device = device;
}
int currentStream(int device) { return current_streams[device]; }
int exchangeStream(int device, int stream) { return std::exchange(current_streams[device], stream); }
int poolStream(int device) {
  static std::atomic<int> next[kDevices];
  return 1 + next[device]++ % kPool;
}
int ownStream(int device) {
  static std::atomic<int> next[kDevices];
  const int own = next[device]++;
  TORCH_CHECK(own < kOwn, "simulated:", device, " has no more streams");
  return 1 + kPool + own;
}
c10::Stream streamOf(int device, int stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(device)), stream);
}

namespace {

// With the world's lock held. What a captured stream cannot do ends the capture, too.
void requireNoCapture(Stream& on, const char* what) {
  if (!on.capture) return;
  on.capture->is_broken = true;
  TORCH_CHECK(false, "operation not permitted when stream is capturing: ", what);
}

// Without the world's lock: that of memory is taken before it elsewhere.
Capture::Node nodeOf(uint64_t pool, const char* name, const std::vector<Access>& accesses, std::function<void()> job) {
  Capture::Node node{name, accesses, {}, std::move(job)};
  for (const Access& access : accesses) {
    const auto* at = reinterpret_cast<const void*>(access.begin);
    if (const uint64_t allocation = allocationOf(at, pool)) node.allocations.emplace_back(at, allocation);
  }
  return node;
}

std::shared_ptr<Capture> captureOf(Stream& on) {
  const std::lock_guard lock(world().mutex);
  return on.capture;
}

}  // namespace

void enqueue(int device, int number, const char* name, const std::vector<Access>& accesses, std::function<void()> job) {
  Stream& to = stream(device, number);
  if (const auto capture = captureOf(to)) {
    Capture::Node node = nodeOf(capture->pool, name, accesses, std::move(job));
    const std::lock_guard lock(world().mutex);
    capture->nodes.push_back(std::move(node));
    return;
  }
  World& all = world();
  const std::lock_guard lock(all.mutex);
  const Clock& clock = to.tick();
  ++all.jobs;
  std::string first;  // of a job one is enough
  for (const Access& access : accesses)
    if (std::string finding = all.history.note(access, to.index(), clock, name); first.empty()) first = finding;
  if (!first.empty()) {
    fprintf(stderr, "simulated accelerator: %s\n", first.c_str());
    all.findings.push_back(std::move(first));
  }
  to.push([device, job = std::move(job)] {
    try {
      const c10::InferenceMode no_autograd;
      job();
    } catch (...) {
      const std::lock_guard lock(world().mutex);
      if (!world().errors[device]) world().errors[device] = std::current_exception();
    }
  });
}

namespace {

// With the world's lock held.
MarkerPtr mark(Stream& on, int device) {
  auto marker = std::make_shared<Marker>();
  marker->device = device;
  marker->clock = on.tick();
  on.push([marker] {
    const std::lock_guard reached(marker->mutex);
    marker->is_reached = true;
    marker->reached.notify_all();
  });
  return marker;
}

void sleepUntil(Marker& marker) {
  std::unique_lock lock(marker.mutex);
  marker.reached.wait(lock, [&] { return marker.is_reached; });
}

}  // namespace

MarkerPtr record(int device, int number) {
  Stream& on = stream(device, number);
  const std::lock_guard lock(world().mutex);
  requireNoCapture(on, "an event");
  return mark(on, device);
}

void block(const MarkerPtr& marker, int device, int number) {
  Stream& on = stream(device, number);
  const std::lock_guard lock(world().mutex);
  requireNoCapture(on, "a wait for an event");
  join(on.clock(), marker->clock);
  on.push([marker] { sleepUntil(*marker); });
}

bool isReached(const MarkerPtr& marker) {
  {
    const std::lock_guard lock(marker->mutex);
    if (!marker->is_reached) return false;
  }
  const std::lock_guard lock(world().mutex);
  join(world().host, marker->clock);
  return true;
}

void waitFor(const MarkerPtr& marker) {
  sleepUntil(*marker);
  {
    const std::lock_guard lock(world().mutex);
    ++world().host_waits;
    join(world().host, marker->clock);
  }
  throwError(marker->device);
}

void waitForStream(int device, int number) { waitFor(record(device, number)); }
void waitForDevice(int device, bool throws) {
  for (int number = 0; number < kStreams; ++number) {
    Stream* const on = streamAt(device, number, /*makes=*/false);
    if (!on || on->isIdle()) continue;
    std::unique_lock lock(world().mutex);
    const MarkerPtr marker = mark(*on, device);
    lock.unlock();
    sleepUntil(*marker);
  }
  for (int number = 0; number < kStreams; ++number) {
    Stream* const on = streamAt(device, number, /*makes=*/false);
    const std::lock_guard lock(world().mutex);
    if (on) join(world().host, on->clock());
  }
  if (throws) throwError(device);
}
bool isIdle(int device, int number) { return stream(device, number).isIdle(); }

// --- graphs ----------------------------------------------------------------------------------------------------------
void beginCapture(const std::shared_ptr<Capture>& capture) {
  Stream& on = stream(capture->device, capture->stream);
  const std::lock_guard lock(world().mutex);
  TORCH_CHECK(capture->stream != 0, "the default stream cannot be captured");
  requireNoCapture(on, "another capture");
  on.capture = capture;
}
void endCapture(const Capture& capture) {
  const std::lock_guard lock(world().mutex);
  stream(capture.device, capture.stream).capture = nullptr;
}
Capture* currentCapture(int device) { return captureOf(stream(device, currentStream(device))).get(); }
bool isCaptured(int device, int number) { return captureOf(stream(device, number)) != nullptr; }
void replay(const Capture& capture, int number) {
  for (const Capture::Node& node : capture.nodes) {
    for (const auto& [address, allocation] : node.allocations)
      if (allocationOf(address, capture.pool) != allocation) {
        const std::lock_guard lock(world().mutex);
        world().findings.push_back(std::string(node.name) + " of a graph touches memory that was freed since");
        break;
      }
    enqueue(capture.device, number, node.name, node.accesses, node.job);
  }
}

// --- what LibTorch asks ----------------------------------------------------------------------------------------------
namespace {

struct Event {
  MarkerPtr marker;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static int indexOf(c10::Device device) { return device.index() < 0 ? currentDevice() : device.index(); }
  static c10::Device deviceAt(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }
  static int numberOf(const c10::Stream& s) { return static_cast<int>(s.id()); }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setCurrentDevice(indexOf(device));
    return old;
  }
  c10::Device getDevice() const override { return deviceAt(currentDevice()); }
  void setDevice(c10::Device device) const override { setCurrentDevice(indexOf(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = indexOf(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return streamOf(indexOf(device), currentStream(indexOf(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return streamOf(indexOf(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return streamOf(indexOf(device), poolStream(indexOf(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return streamOf(indexOf(device), poolStream(indexOf(device)));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return streamOf(s.device_index(), simulated::exchangeStream(s.device_index(), numberOf(s)));
  }
  bool queryStream(const c10::Stream& s) const override { return isIdle(s.device_index(), numberOf(s)); }
  void synchronizeStream(const c10::Stream& s) const override { waitForStream(s.device_index(), numberOf(s)); }
  void synchronizeDevice(c10::DeviceIndex device) const override { waitForDevice(device); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& s) const override {
    recordStream(memory.get(), s.device_index(), numberOf(s));
  }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->marker = simulated::record(s.device_index(), numberOf(s));
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event && static_cast<Event*>(event)->marker)
      simulated::block(static_cast<Event*>(event)->marker, s.device_index(), numberOf(s));
  }
  bool queryEvent(void* event) const override { return !event || isReached(static_cast<Event*>(event)->marker); }
  void synchronizeEvent(void* event) const override {
    if (event) waitFor(static_cast<Event*>(event)->marker);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

void setDelays(uint64_t seed) { world().delays = seed; }
std::vector<std::string> takeFindings() {
  const std::lock_guard lock(world().mutex);
  return std::exchange(world().findings, {});
}
int64_t numJobs() {
  const std::lock_guard lock(world().mutex);
  return world().jobs;
}
int64_t numHostWaits() {
  const std::lock_guard lock(world().mutex);
  return world().host_waits;
}

namespace detail {
void forgetHistory(uintptr_t begin, uintptr_t end) {
  const std::lock_guard lock(world().mutex);
  world().history.forget(begin, end);
}
}  // namespace detail

}  // namespace simulated
