// Random numbers as accelerators make them: a seed, and an offset that every kernel moves.
#include "generator.h"

#include <atomic>
#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include "device.h"
#include "simulated.h"

namespace simulated {
namespace {

/// By a kernel that makes so many numbers.
uint64_t moved(int64_t elements) { return 4 * (1 + static_cast<uint64_t>(elements) / 1024); }

struct State {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  void set_offset(uint64_t offset) override { state_.offset = offset; }
  uint64_t get_offset() const override { return state_.offset; }
  uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_.seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == sizeof(State), "the state of a simulated generator has ", sizeof(State), " bytes");
    std::memcpy(&state_, state.data(), sizeof(State));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({static_cast<int64_t>(sizeof(State))}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &state_, sizeof(State));
    return state.getIntrusivePtr();
  }
  uint64_t take(uint64_t numbers) { return std::exchange(state_.offset, state_.offset + numbers); }

 private:
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->state_ = state_;
    return copy;
  }
  State state_;
};

Generator* implOf(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl());
}

std::vector<at::Generator>& defaults() {
  static auto* const all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int device = 0; device < kDevices; ++device)
      made->push_back(at::make_generator<Generator>(static_cast<c10::DeviceIndex>(device)));
    return made;
  }();
  return *all;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { simulated::setCurrentDevice(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(currentDevice()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int old = currentDevice();
    simulated::setCurrentDevice(device);
    return static_cast<c10::DeviceIndex>(old);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return defaults()[static_cast<size_t>(device < 0 ? currentDevice() : device)];
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? static_cast<c10::DeviceIndex>(currentDevice()) : device);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    return {kType, static_cast<c10::DeviceIndex>(deviceOf(data))};
  }
  bool isPinnedPtr(const void* data) const override { return isPinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinnedAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr memory = c10::GetAllocator(kType)->allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) c10::GetAllocator(kType)->copy_data(memory.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

[[maybe_unused]] const bool registered = [] {
  c10::register_privateuse1_backend("simulated");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

struct GraphNumbers {
  std::atomic<uint64_t> seed = 0, offset = 0;
};
namespace {
GraphNumbers graph_numbers[kDevices];
uint64_t seedOf(uint64_t seed, uint64_t offset) { return seed * 0x9E3779B97F4A7C15u + offset; }
}  // namespace

void Numbers::prepare() {
  if (of_graph) generator.set_current_seed(seedOf(of_graph->seed, of_graph->offset + offset));
}
Access Numbers::access() const {
  const auto begin = reinterpret_cast<uintptr_t>(of_graph);
  return {begin, begin + sizeof(GraphNumbers), /*writes=*/false};
}

Numbers takeNumbers(const std::optional<at::Generator>& given, int device, int64_t elements) {
  at::Generator from = given && given->defined() ? *given : defaults()[static_cast<size_t>(device)];
  TORCH_CHECK(from.device().type() == kType, "Expected a generator of a simulated device, found ", from.device());
  if (Capture* capture = currentCapture(device)) {
    TORCH_CHECK(from.unsafeGetGeneratorImpl() == defaults()[static_cast<size_t>(device)].unsafeGetGeneratorImpl(),
                "a graph draws from the default generator of its device only");
    const uint64_t offset = std::exchange(capture->drawn, capture->drawn + moved(elements));
    return {at::detail::createCPUGenerator(), &graph_numbers[device], offset};
  }
  const std::lock_guard lock(from.mutex());
  const uint64_t offset = implOf(from)->take(moved(elements));
  return {at::detail::createCPUGenerator(seedOf(from.current_seed(), offset))};
}

void giveNumbers(int device, int stream, uint64_t drawn) {
  at::Generator& from = defaults()[static_cast<size_t>(device)];
  const std::lock_guard lock(from.mutex());
  const uint64_t offset = implOf(from)->take(drawn);
  GraphNumbers* to = &graph_numbers[device];
  Access access = Numbers{{}, to, 0}.access();
  access.writes = true;
  enqueue(device, stream, "numbers of a graph", {access}, [to, seed = from.current_seed(), offset] {
    to->seed = seed;
    to->offset = offset;
  });
}

void seedAll(uint64_t seed) {
  for (at::Generator& generator : defaults()) generator.set_current_seed(seed);
}

}  // namespace simulated
