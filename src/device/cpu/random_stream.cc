#include "device/cpu/random_stream.h"

#include <iterator>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/normals.h"

namespace abele::device {
namespace {

at::CPUGeneratorImpl* implOf(const at::Generator& generator) { return generator.get<at::CPUGeneratorImpl>(); }

}  // namespace

void skipDraws(at::mt19937& engine, int64_t draws) {
  at::mt19937_data_pod words = engine.data();
  // left_ counts down to 1, then the next draw makes new words and takes the first of them.
  for (; draws >= words.left_; words = engine.data()) {
    draws -= words.left_;
    words.left_ = 1;
    engine.set_data(words);
    engine();
  }
  if (draws <= 0) return;
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
      {.what = "the number of random numbers of an operator depends on values, and others draw in another order than "
               "in the program",
       .expected = "one stage that runs the whole program",
       .remedy = "draw these numbers before the call and pass them as an input, or leave the phases out"});
  generator_ = found->second.clone();
  now_ = key;
}

}  // namespace abele::device
