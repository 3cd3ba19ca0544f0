#include "device/accelerator/random_position.h"

#include <map>
#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/Event.h>

namespace abele::device {
namespace {

// Only one thread at a time may move the default generator of a device.
std::mutex& defaultMutex() {
  static std::mutex mutex;
  return mutex;
}

const at::Generator& defaultGenerator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

bool isDefault(const at::Generator& generator) {
  return generator.unsafeGetGeneratorImpl() == defaultGenerator(generator.device()).unsafeGetGeneratorImpl();
}

void put(at::Generator generator, uint64_t seed, uint64_t offset) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
  generator.set_offset(offset);
}

// The event after the last replay on a device that drew numbers. Requires: the lock is held.
c10::Event& lastDraws(c10::Device device) {
  // Never destroyed: it may outlive the devices' own objects.
  static auto* const events = new std::map<c10::DeviceIndex, c10::Event>;
  return events->try_emplace(device.index(), device.type()).first->second;
}

}  // namespace

LentDefault::LentDefault(RandomPosition& random, const RandomPlace& place, const std::optional<c10::Stream>& stream)
    : random_(random), stream_(stream), lock_(defaultMutex()) {
  const at::Generator& generator = defaultGenerator(random.generator_.device());
  if (stream_) lastDraws(generator.device()).block(*stream_);
  seed_ = generator.current_seed();
  offset_ = generator.get_offset();
  put(generator, random.generator_.current_seed(), random.start_ + static_cast<uint64_t>(place.draws_before));
  random.lent_ = generator;
}

LentDefault::~LentDefault() {
  if (stream_) lastDraws(random_.lent_.device()).record(*stream_);
  put(std::exchange(random_.lent_, at::Generator()), seed_, offset_);
}

RandomPosition::RandomPosition(c10::Device device) : generator_(newGenerator(device)) {}

void RandomPosition::begin(const at::Generator& start) {
  if (generator_.device().is_cpu()) return;
  start_ = start.get_offset();
  generator_.set_current_seed(start.current_seed());
  generator_.set_offset(start_);
}

const at::Generator& RandomPosition::draw(const RandomPlace& place) {
  if (lent_.defined()) return lent_;
  generator_.set_offset(start_ + static_cast<uint64_t>(place.draws_before));
  return generator_;
}

at::Generator newGenerator(c10::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator();
  return at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
}

std::unique_ptr<Call> makeDefaultGeneratorCall(std::unique_ptr<Call> call, const exe::Instruction& instruction) {
  // Only the fields that describe its draws.
  exe::Instruction draws{.random_draws = instruction.random_draws, .random_offset = instruction.random_offset};
  return callOf([call = std::move(call), draws = std::move(draws)](CallState& state) {
    const at::Generator& stands = state.random->draw(state.placeOf(draws));
    if (isDefault(stands)) return call->run(state);
    const std::lock_guard lock(defaultMutex());
    const at::Generator& generator = defaultGenerator(stands.device());
    const uint64_t seed = generator.current_seed(), offset = generator.get_offset();
    put(generator, stands.current_seed(), stands.get_offset());
    try {
      call->run(state);
    } catch (...) {
      put(generator, seed, offset);
      throw;
    }
    put(generator, seed, offset);
  });
}

}  // namespace abele::device
