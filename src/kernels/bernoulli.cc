#include "kernels/bernoulli.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

namespace abele::kernels {
namespace {

// MT19937 has a state of 624 words. A twist makes the next state, and tempering makes a random number of each word.
constexpr int kWords = at::MERSENNE_STATE_N, kShift = at::MERSENNE_STATE_M;

uint32_t twisted(uint32_t word, uint32_t next) {
  const uint32_t joined = (word & at::UMASK) | (next & at::LMASK);
  return (joined >> 1) ^ ((0 - (next & 1)) & at::MATRIX_A);
}

void twist(uint32_t* words) {
  for (int i = 0; i < kWords - kShift; ++i) words[i] = words[i + kShift] ^ twisted(words[i], words[i + 1]);
  for (int i = kWords - kShift; i < kWords - 1; ++i)
    words[i] = words[i - (kWords - kShift)] ^ twisted(words[i], words[i + 1]);
  words[kWords - 1] = words[kShift - 1] ^ twisted(words[kWords - 1], words[0]);
}

uint32_t tempered(uint32_t word) {
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680;
  word ^= (word << 15) & 0xefc60000;
  return word ^ (word >> 18);
}

// Each element takes two random numbers. The lower 53 of their 64 bits, times 2^-53, are a number between 0 and 1, and
// the element is 1 if that is less than p.
void fill(float* to, int64_t count, double p, at::mt19937& engine) {
  at::mt19937_data_pod state = engine.data();
  uint32_t* const words = state.state_.data();
  const auto limit = static_cast<uint64_t>(std::ceil(std::ldexp(p, 53)));
  const auto limit_high = static_cast<uint32_t>(limit >> 32), limit_low = static_cast<uint32_t>(limit);
  uint32_t numbers[kWords + 1];
  int used = kWords + 1 - state.left_;  // words of the state
  int held = 0;                         // 1: numbers[0] is the first one of an element
  while (count > 0) {
    if (used == kWords) {
      twist(words);
      used = 0;
    }
    const int taken = static_cast<int>(std::min<int64_t>(kWords - used, 2 * count - held));
    for (int i = 0; i < taken; ++i) numbers[held + i] = tempered(words[used + i]);
    used += taken;
    const int pairs = (held + taken) / 2;
    for (int i = 0; i < pairs; ++i) {
      const uint32_t high = numbers[2 * i] & 0x1fffff, low = numbers[2 * i + 1];
      const bool is_less = (high < limit_high) | ((high == limit_high) & (low < limit_low));
      to[i] = is_less ? 1.0F : 0.0F;
    }
    numbers[0] = numbers[held + taken - 1];
    held = (held + taken) % 2;
    to += pairs;
    count -= pairs;
  }
  state.next_ = static_cast<uint32_t>(used);
  state.left_ = kWords + 1 - used;
  engine.set_data(state);
}

void fill(const at::Tensor& to, double p, const at::Generator& generator) {
  auto* const source = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard lock(source->mutex_);
  at::mt19937 engine = source->engine();
  fill(to.mutable_data_ptr<float>(), to.numel(), p, engine);
  source->set_engine(engine);
}

bool hasBitsOfATen() {
  static const bool has = [] {
    const at::Generator theirs = at::detail::createCPUGenerator(), ours = theirs.clone();
    at::Tensor expected = at::empty({1001}), found = at::empty({1001});
    for (const double p : {0.1, 0.5, 0.9}) {
      at::cpu::bernoulli_(expected, p, theirs);
      fill(found, p, ours);
      if (!at::equal(expected, found) || !at::equal(theirs.get_state(), ours.get_state())) return false;
    }
    return true;
  }();
  return has;
}

}  // namespace

void drawBernoulli(at::Tensor to, double p, const at::Generator& generator) {
  if (to.scalar_type() == at::kFloat && to.is_contiguous() && to.numel() > 0 && p >= 0 && p <= 1 && hasBitsOfATen())
    fill(to, p, generator);
  else
    at::cpu::bernoulli_(to, p, generator);
}

}  // namespace abele::kernels
