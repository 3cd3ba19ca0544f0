#include "runtime/device/cpu/random_stream.h"

#include <array>
#include <iterator>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>

namespace abele::runtime {
namespace {

constexpr int kWords = at::MERSENNE_STATE_N;
constexpr int kShift = at::MERSENNE_STATE_M;

uint32_t twist(uint32_t u, uint32_t v) {
  return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ ((v & 1u) != 0 ? 0x9908b0dfu : 0u);
}

// The next 624 words of the Mersenne twister.
void nextWords(std::array<uint32_t, kWords>& words) {
  for (int i = 0; i < kWords - kShift; ++i) words[i] = words[i + kShift] ^ twist(words[i], words[i + 1]);
  for (int i = kWords - kShift; i < kWords - 1; ++i)
    words[i] = words[i + kShift - kWords] ^ twist(words[i], words[i + 1]);
  words[kWords - 1] = words[kShift - 1] ^ twist(words[kWords - 1], words[0]);
}

at::CPUGeneratorImpl* implOf(const at::Generator& generator) { return generator.get<at::CPUGeneratorImpl>(); }

}  // namespace

void skipDraws(at::mt19937& engine, int64_t draws) {
  if (draws <= 0) return;
  at::mt19937_data_pod words = engine.data();
  // left_ counts down to 1, then the next draw makes new words; next_ is the word that the next draw reads.
  while (draws > words.left_ - 1) {
    draws -= words.left_;
    nextWords(words.state_);
    words.left_ = kWords;
    words.next_ = 1;
  }
  words.left_ -= static_cast<int>(draws);
  words.next_ += static_cast<uint32_t>(draws);
  engine.set_data(words);
}

RandomStream::RandomStream(bool is_alone) : is_alone_(is_alone), generator_(at::detail::createCPUGenerator()) {}

void RandomStream::begin(const at::Generator& start) {
  generator_ = start.clone();
  position_ = 0;
  may_be_behind_ = false;
  marks_.clear();
  marks_.emplace(0, implOf(generator_)->engine());
}

const at::Generator& RandomStream::draw(int64_t position, int64_t draws, bool or_fewer) {
  if (position != position_ || may_be_behind_) seek(position);
  may_be_behind_ = or_fewer && !is_alone_;
  if (may_be_behind_) marks_.try_emplace(position, implOf(generator_)->engine());
  position_ = position + draws;
  return generator_;
}

void RandomStream::seek(int64_t position) {
  at::CPUGeneratorImpl* impl = implOf(generator_);
  if (!may_be_behind_) marks_.try_emplace(position_, impl->engine());
  const auto mark = std::prev(marks_.upper_bound(position));  // begin() made one at 0
  at::mt19937 engine = mark->second;
  skipDraws(engine, position - mark->first);
  impl->set_engine(engine);
  impl->set_next_float_normal_sample(std::nullopt);
  impl->set_next_double_normal_sample(std::nullopt);
  position_ = position;
}

}  // namespace abele::runtime
