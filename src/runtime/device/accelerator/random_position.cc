#include "runtime/device/accelerator/random_position.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace abele::runtime {
namespace {

// Puts the default generator of a device somewhere, and back.
class Lent {
 public:
  Lent(c10::Device device, const at::Generator& stands) : generator_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard lock(generator_.mutex());
    seed_ = generator_.current_seed();
    offset_ = generator_.get_offset();
    set(stands.current_seed(), stands.get_offset());
  }
  ~Lent() {
    const std::lock_guard lock(generator_.mutex());
    set(seed_, offset_);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  void set(uint64_t seed, uint64_t offset) {
    generator_.set_current_seed(seed);
    generator_.set_offset(offset);
  }
  at::Generator generator_;
  uint64_t seed_ = 0, offset_ = 0;
};

class DefaultGeneratorCall final : public Call {
 public:
  DefaultGeneratorCall(std::unique_ptr<Call> call, const exe::Instruction& instruction, c10::Device device)
      : call_(std::move(call)),
        draws_{.random_draws = instruction.random_draws, .random_offset = instruction.random_offset},
        device_(device) {}

  void run(CallState& state) override {
    static std::mutex one_at_a_time;
    const at::Generator& stands = state.random->draw(state.placeOf(draws_));
    const std::lock_guard lock(one_at_a_time);
    const Lent lent(device_, stands);
    call_->run(state);
  }

 private:
  std::unique_ptr<Call> call_;
  exe::Instruction draws_;  // only what says what it draws
  c10::Device device_;
};

}  // namespace

RandomPosition::RandomPosition(c10::Device device) : generator_(newGenerator(device)) {}

void RandomPosition::begin(const at::Generator& start) {
  if (generator_.device().is_cpu()) return;
  start_ = start.get_offset();
  generator_.set_current_seed(start.current_seed());
  generator_.set_offset(start_);
}

const at::Generator& RandomPosition::draw(const RandomPlace& place) {
  generator_.set_offset(start_ + static_cast<uint64_t>(place.draws_before));
  return generator_;
}

at::Generator newGenerator(c10::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator();
  return at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
}

std::unique_ptr<Call> makeDefaultGeneratorCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                               c10::Device device) {
  return std::make_unique<DefaultGeneratorCall>(std::move(call), instruction, device);
}

}  // namespace abele::runtime
