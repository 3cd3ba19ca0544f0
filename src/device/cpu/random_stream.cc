#include "device/cpu/random_stream.h"

#include <array>
#include <iterator>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/normals.h"

namespace abele::device {
namespace {

constexpr int kWords = at::MERSENNE_STATE_N;
constexpr int kShift = at::MERSENNE_STATE_M;

uint32_t twist(uint32_t u, uint32_t v) {
  return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ ((v & 1u) != 0 ? 0x9908b0dfu : 0u);
}

// Makes the next 624 words of the Mersenne twister.
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

RandomStream::RandomStream(bool varies) : varies_(varies), generator_(at::detail::createCPUGenerator()) {}

void RandomStream::begin(const at::Generator& start) {
  generator_ = start.clone();
  first_spare_ = implOf(generator_)->next_double_normal_sample();
  position_ = normals_ = 0;
  marks_.clear();
  marks_.emplace(0, implOf(generator_)->engine());
  now_ = {};
  seen_.clear();
}

int64_t RandomStream::positionOf(int64_t draws, int64_t normals) const {
  return draws + drawsOfNormals(normals, first_spare_.has_value());
}

const at::Generator& RandomStream::draw(const RandomPlace& place) {
  go(place, place.normals > 0);
  const int64_t normals = place.normals_before + place.normals;
  position_ = positionOf(place.draws_before + place.draws, normals);
  if (place.normals > 0) normals_ = normals;
  now_ = {place.draws_before + place.draws, normals};
  return generator_;
}

const at::Generator& RandomStream::stand(const RandomPlace& place) {
  go(place, /*finds_spare=*/true);
  return generator_;
}

void RandomStream::go(const RandomPlace& place, bool finds_spare) {
  if (varies_) return goWhereItWas({place.draws_before, place.normals_before});
  // An operator that draws no normal number does not touch the spare, so the spare may be a wrong one.
  if (finds_spare && normals_ != place.normals_before) makeSpare(place);
  const int64_t position = positionOf(place.draws_before, place.normals_before);
  if (position != position_) seek(position);
}

void RandomStream::makeSpare(const RandomPlace& place) {
  constexpr int64_t kPair = 4;
  at::CPUGeneratorImpl* impl = implOf(generator_);
  normals_ = place.normals_before;
  if (!leavesSpare(normals_, first_spare_.has_value())) return impl->set_next_double_normal_sample(std::nullopt);
  if (normals_ == 0) return impl->set_next_double_normal_sample(first_spare_);
  const int64_t end = positionOf(place.spare, normals_);
  seek(end - kPair);
  impl->set_next_double_normal_sample(std::nullopt);
  // Uses the operator that eager PyTorch runs, so that the bits are the same.
  const c10::InferenceMode no_autograd;
  at::empty({1}, at::kDouble).normal_(0, 1, generator_);
  position_ = end;
}

void RandomStream::seek(int64_t position) {
  at::CPUGeneratorImpl* impl = implOf(generator_);
  marks_.try_emplace(position_, impl->engine());
  const auto mark = std::prev(marks_.upper_bound(position));  // begin() made a mark at 0
  at::mt19937 engine = mark->second;
  skipDraws(engine, position - mark->first);
  impl->set_engine(engine);
  position_ = position;
}

void RandomStream::goWhereItWas(const Key& key) {
  if (key == now_) {
    seen_.try_emplace(key, generator_.clone());
    return;
  }
  seen_.try_emplace(now_, generator_.clone());
  const auto found = seen_.find(key);
  ABELE_REQUIRE(
      found != seen_.end(), E0106,
      {.what = "values decide how many random numbers an operator draws, and others draw in another order than "
               "in the program",
       .expected = "one stage that runs the whole program",
       .remedy = "draw these numbers before the call and pass them as an input, or leave the phases out"});
  generator_ = found->second.clone();
  now_ = key;
}

}  // namespace abele::device
