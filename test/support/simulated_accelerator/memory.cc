// Device memory has two addresses: the one that tensors carry cannot be touched, kernels use the other one.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include "device.h"
#include "simulated.h"

namespace simulated {

namespace detail {
void forgetHistory(uintptr_t begin, uintptr_t end);
}

namespace {

constexpr size_t kDeviceBytes = size_t{4} << 30;
constexpr size_t kAlignment = 512;
constexpr int kPoison = 0xFF;  // a NaN, an index of -1

char* addresses = nullptr;  // of tensors
char* contents = nullptr;   // for kernels

bool isOurs(const void* address) {
  return address >= addresses && address < addresses + kDevices * kDeviceBytes && addresses != nullptr;
}

struct sigaction previous_handler;

void onFault(int signal, siginfo_t* info, void* context) {
  if (isOurs(info->si_addr)) {
    constexpr char kText[] = "simulated accelerator: the host touched memory of a device\n";
    static_cast<void>(!write(2, kText, sizeof kText - 1));
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  if (previous_handler.sa_flags & SA_SIGINFO) return previous_handler.sa_sigaction(signal, info, context);
  std::signal(signal, SIG_DFL);  // happens again, and ends the process
}

void makeMemory() {
  static const bool made = [] {
    const int file = memfd_create("simulated", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, kDevices * kDeviceBytes) == 0, "no memory for simulated devices");
    void* none = mmap(nullptr, kDevices * kDeviceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void* all = mmap(nullptr, kDevices * kDeviceBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(none != MAP_FAILED && all != MAP_FAILED, "no memory for simulated devices");
    close(file);
    addresses = static_cast<char*>(none);
    contents = static_cast<char*>(all);
    struct sigaction action {};
    action.sa_sigaction = &onFault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &previous_handler);
    return true;
  }();
  static_cast<void>(made);
}

struct Block {
  size_t bytes = 0;
  int device = 0, stream = 0;
  uint64_t pool = 0;                         // of a capture; 0: none
  uint64_t number = 0;                       // of the allocation
  std::vector<std::pair<int, int>> used_on;  // device, stream
};

// Free blocks go back to the stream that allocated them: what it enqueues later comes after the poison.
class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    makeMemory();
    const int device = currentDevice();
    const c10::Device where(kType, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, nullptr, &release, where};
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const int stream = currentStream(device);
    reclaim();
    const Capture* capture = currentCapture(device);
    const uint64_t pool = capture ? capture->pool : 0;
    char* begin = nullptr;
    bool is_fresh = false;
    {
      const std::lock_guard lock(mutex_);
      std::vector<char*>& blocks = free_[{device, stream, rounded, pool}];
      if (!blocks.empty()) {
        begin = blocks.back();
        blocks.pop_back();
      } else {
        TORCH_CHECK_WITH(OutOfMemoryError, used_[device] + rounded <= kDeviceBytes, "simulated:", device,
                         " is out of memory");
        begin = addresses + static_cast<size_t>(device) * kDeviceBytes + used_[device];
        used_[device] += rounded;
        ++fresh_[device];
        is_fresh = true;
      }
      blocks_[begin] = {rounded, device, stream, pool, ++last_number_, {}};
      allocated_[device] += static_cast<int64_t>(rounded);
    }
    if (is_fresh) poison(begin, rounded, device, stream, "allocation");
    return {begin, begin, &release, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const int device = deviceOf(to), stream = currentStream(device);
    const auto range = [&](const void* at, bool writes) {
      return Access{reinterpret_cast<uintptr_t>(at), reinterpret_cast<uintptr_t>(at) + bytes, writes};
    };
    enqueue(device, stream, "copy of memory", {range(to, true), range(from, false)},
            [to = twin(to), from = twin(from), bytes] { std::memcpy(to, from, bytes); });
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream s) override {
    simulated::recordStream(memory.get(), s.device_index(), static_cast<int>(s.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const std::lock_guard lock(mutex_);
    stats.allocated_bytes[0].current = allocated_[device];
    stats.segment[0].allocated = fresh_[device];
    stats.reserved_bytes[0].allocated = static_cast<int64_t>(used_[device]);
    countPools(device, stats);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return {kDeviceBytes - static_cast<size_t>(allocated_[device]), kDeviceBytes};
  }

  void noteUse(const void* address, int device, int stream) {
    const std::lock_guard lock(mutex_);
    Block* block = blockOf(address);
    if (block && (block->stream != stream || block->device != device)) block->used_on.emplace_back(device, stream);
  }

  uint64_t allocationOf(const void* address, uint64_t pool) {
    const std::lock_guard lock(mutex_);
    const Block* block = isOurs(address) ? blockOf(address) : nullptr;
    return block && (pool == 0 || block->pool != pool) ? block->number : 0;
  }

  void holdPool(uint64_t pool) {
    const std::lock_guard lock(mutex_);
    ++pools_[pool];
  }
  void dropPool(uint64_t pool) {
    const std::lock_guard lock(mutex_);
    if (--pools_[pool] > 0) return;
    pools_.erase(pool);
    for (auto it = free_.begin(); it != free_.end();) {
      const auto& [device, stream, bytes, of] = it->first;
      if (of != pool) {
        ++it;
        continue;
      }
      std::vector<char*>& to = free_[{device, stream, bytes, 0}];
      to.insert(to.end(), it->second.begin(), it->second.end());
      it = free_.erase(it);
    }
  }

 private:
  static void release(void* begin);

  // With the lock held. Null: the address lies in no allocation.
  Block* blockOf(const void* address) {
    auto block = blocks_.upper_bound(static_cast<char*>(const_cast<void*>(address)));
    if (block == blocks_.begin()) return nullptr;
    --block;
    return static_cast<const char*>(address) < block->first + block->second.bytes ? &block->second : nullptr;
  }

  // With the lock held: what captures hold, in use or free.
  template <class Stats>
  void countPools(int device, Stats& stats) const {
    if constexpr (requires { stats.reserved_bytes_by_private_pools; }) {
      const auto add = [&](uint64_t pool, int64_t bytes) {
        if (pool != 0) stats.reserved_bytes_by_private_pools[c10::MempoolId_t{pool, 0}][0].current += bytes;
      };
      for (const auto& [begin, block] : blocks_)
        if (block.device == device) add(block.pool, static_cast<int64_t>(block.bytes));
      for (const auto& [key, begins] : free_)
        if (std::get<0>(key) == device) add(std::get<3>(key), static_cast<int64_t>(std::get<2>(key) * begins.size()));
    }
  }

  static void poison(char* begin, size_t bytes, int device, int stream, const char* name) {
    const auto at = reinterpret_cast<uintptr_t>(begin);
    enqueue(device, stream, name, {{at, at + bytes, true}},
            [to = twin(begin), bytes] { std::memset(to, kPoison, bytes); });
  }

  void free(char* begin) {
    Block block;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(begin);
      block = std::move(found->second);
      blocks_.erase(found);
      allocated_[block.device] -= static_cast<int64_t>(block.bytes);
    }
    giveBack(begin, std::move(block));
  }

  void giveBack(char* begin, Block block) {
    // A graph poisons the memory of its own pool. What others freed while their stream is captured waits for its end.
    const bool is_captured = isCaptured(block.device, block.stream);
    if (is_captured && block.pool == 0) {
      const std::lock_guard lock(mutex_);
      later_.emplace_back(begin, std::move(block));
      return;
    }
    if (!block.used_on.empty() && !is_captured) {  // later, when these streams have gone on
      std::vector<MarkerPtr> markers;
      for (const auto& [device, stream] : block.used_on) markers.push_back(record(device, stream));
      markers.push_back(record(block.device, block.stream));
      const std::lock_guard lock(mutex_);
      waiting_.push_back({begin, block, std::move(markers)});
      return;
    }
    poison(begin, block.bytes, block.device, block.stream, "free");
    const std::lock_guard lock(mutex_);
    putFree(begin, block);
  }

  // With the lock held.
  void putFree(char* begin, const Block& block) {
    const uint64_t pool = pools_.contains(block.pool) ? block.pool : 0;
    free_[{block.device, block.stream, block.bytes, pool}].push_back(begin);
  }

  void reclaim() {
    std::vector<Waiting> over;
    std::vector<std::pair<char*, Block>> later;
    {
      const std::lock_guard lock(mutex_);
      later.swap(later_);
      std::erase_if(waiting_, [&](Waiting& each) {
        for (const MarkerPtr& marker : each.markers)
          if (!isReached(marker)) return false;
        over.push_back(std::move(each));
        return true;
      });
    }
    for (auto& [begin, block] : later) giveBack(begin, std::move(block));
    for (const Waiting& each : over) {
      const auto at = reinterpret_cast<uintptr_t>(each.begin);
      detail::forgetHistory(at, at + each.block.bytes);
      poison(each.begin, each.block.bytes, each.block.device, each.block.stream, "free");
      const std::lock_guard lock(mutex_);
      putFree(each.begin, each.block);
    }
  }

  struct Waiting {
    char* begin;
    Block block;
    std::vector<MarkerPtr> markers;
  };
  std::mutex mutex_;
  std::map<char*, Block> blocks_;
  std::map<std::tuple<int, int, size_t, uint64_t>, std::vector<char*>> free_;
  std::vector<Waiting> waiting_;
  std::vector<std::pair<char*, Block>> later_;
  std::map<uint64_t, int> pools_;  // who holds each
  uint64_t last_number_ = 0;
  size_t used_[kDevices] = {};
  int64_t allocated_[kDevices] = {}, fresh_[kDevices] = {};
};

Memory& memory() {
  static auto* const instance = new Memory;
  return *instance;
}

void Memory::release(void* begin) {
  if (begin != nullptr) memory().free(static_cast<char*>(begin));
}

// Memory of the host that streams may read and write while the host goes on.
class Pinned final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    char* begin = static_cast<char*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
    const std::lock_guard lock(mutex_);
    ranges_[begin] = {bytes, 0};
    return {begin, begin, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool holds(const void* address) {
    const std::lock_guard lock(mutex_);
    return rangeOf(address) != nullptr;
  }
  // Copies on their way from the allocation that holds the address.
  int64_t addReaders(const void* address, int64_t more) {
    const std::lock_guard lock(mutex_);
    Range* const range = rangeOf(address);
    return range ? range->readers += more : 0;
  }

 private:
  struct Range {
    size_t bytes = 0;
    int64_t readers = 0;
  };
  // With the lock held.
  Range* rangeOf(const void* address) {
    auto range = ranges_.upper_bound(static_cast<const char*>(address));
    if (range == ranges_.begin()) return nullptr;
    --range;
    const bool holds = static_cast<const char*>(address) < range->first + std::max<size_t>(range->second.bytes, 1);
    return holds ? &range->second : nullptr;
  }
  static void release(void* begin);
  std::mutex mutex_;
  std::map<const char*, Range> ranges_;
};

Pinned& pinned() {
  static auto* const instance = new Pinned;
  return *instance;
}

// As torch's own: the memory lasts until what is enqueued now has run.
void Pinned::release(void* begin) {
  if (begin == nullptr) return;
  for (int device = 0; device < kDevices; ++device) waitForDevice(device, /*throws=*/false);
  const auto at = reinterpret_cast<uintptr_t>(begin);
  {
    const std::lock_guard lock(pinned().mutex_);
    const auto range = pinned().ranges_.find(static_cast<char*>(begin));
    detail::forgetHistory(at, at + range->second.bytes);
    pinned().ranges_.erase(range);
  }
  std::free(begin);
}

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(kType, &memory());
  return true;
}();

}  // namespace

void* twin(const void* address) {
  return isOurs(address) ? contents + (static_cast<const char*>(address) - addresses) : nullptr;
}
int deviceOf(const void* address) {
  return isOurs(address) ? static_cast<int>((static_cast<const char*>(address) - addresses) / kDeviceBytes) : -1;
}
bool isPinned(const void* address) { return pinned().holds(address); }
void noteReader(const void* address, int64_t more) { pinned().addReaders(address, more); }
bool hasReaders(const void* address) { return pinned().addReaders(address, 0) > 0; }
c10::Allocator* pinnedAllocator() { return &pinned(); }
void recordStream(const void* address, int device, int stream) { memory().noteUse(address, device, stream); }
uint64_t allocationOf(const void* address, uint64_t pool) { return memory().allocationOf(address, pool); }
void holdPool(uint64_t pool) { memory().holdPool(pool); }
void dropPool(uint64_t pool) { memory().dropPool(pool); }

}  // namespace simulated
