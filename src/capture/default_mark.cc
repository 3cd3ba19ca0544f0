#include "capture/default_mark.h"

#include <atomic>
#include <bit>
#include <cstdint>

#include <ATen/CPUGeneratorImpl.h>

namespace abele::capture {
namespace {

/// Runs a function on the default generator while no other thread uses it.
template <class Function>
auto onDefault(const Function& function) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const GeneratorLock lock(generator);
  return function(*generator.get<at::CPUGeneratorImpl>());
}

/// Another one for each place of each capture: states of an earlier capture may come back. No normal number.
float nextMark() {
  constexpr uint32_t kFirst = 0x71000000, kMost = 0x0E000000;  // 6e29 and more, below infinity
  static std::atomic<uint32_t> count{0};
  return std::bit_cast<float>(kFirst + count++ % kMost);
}

}  // namespace

DefaultMark::DefaultMark(RandomStream* stream)
    : stream_(*stream),
      before_(onDefault([](at::CPUGeneratorImpl& generator) { return generator.next_float_normal_sample(); })) {
  put();
}

DefaultMark::~DefaultMark() {
  onDefault([this](at::CPUGeneratorImpl& generator) {
    const std::optional<float> now = generator.next_float_normal_sample();
    if (now && states_.contains(*now)) generator.set_next_float_normal_sample(before_);
  });
}

bool DefaultMark::follow() {
  const auto now = onDefault([](at::CPUGeneratorImpl& generator) { return generator.next_float_normal_sample(); });
  if (now == mark_) return true;
  const auto found = now ? states_.find(*now) : states_.end();
  if (found == states_.end()) {
    put();
    return false;
  }
  mark_ = found->first;
  stream_.goTo(found->second);
  return true;
}

void DefaultMark::put() {
  mark_ = nextMark();
  states_.emplace(mark_, copyOf(stream_.generator()));
  onDefault([this](at::CPUGeneratorImpl& generator) { generator.set_next_float_normal_sample(mark_); });
}

}  // namespace abele::capture
