#include "capture/random_stream.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/core/Tensor.h>

namespace abele::capture {
namespace {

at::CPUGeneratorImpl* cpu(const at::Generator& generator) { return generator.get<at::CPUGeneratorImpl>(); }

constexpr float kMark = 1e30F;  // no normal number

bool same(const at::mt19937_data_pod& a, const at::mt19937_data_pod& b) {
  return a.next_ == b.next_ && a.left_ == b.left_ && a.state_ == b.state_;
}

uint64_t hashOf(const at::Generator& generator) {
  if (!generator.device().is_cpu()) return generator.current_seed() * 31 + generator.get_offset();
  const at::mt19937_data_pod data = cpu(generator)->engine().data();
  const std::string_view words(reinterpret_cast<const char*>(data.state_.data()), sizeof data.state_);
  const std::optional<double> spare = cpu(generator)->next_double_normal_sample();
  const uint64_t engine = std::hash<std::string_view>()(words) * 31 + static_cast<uint64_t>(data.left_);
  return spare ? engine * 31 + std::hash<double>()(*spare) + 1 : engine;
}

/// A generator with four draws, for one pair of normal numbers.
struct FourDraws {
  std::array<uint32_t, 4> words{};
  size_t next = 0;
  std::optional<double> spare;

  uint64_t random64() {
    const uint64_t high = words[next++];
    return high << 32 | words[next++];
  }
  uint32_t random() { return words[next++]; }
  std::optional<double> next_double_normal_sample() const { return spare; }
  void set_next_double_normal_sample(std::optional<double> sample) { spare = sample; }
};

double spareOf(const std::array<uint32_t, 4>& words) {
  FourDraws draws{.words = words};
  at::normal_distribution<double>(0, 1)(&draws);
  return *draws.spare;
}

ProcessMutex& generatorsMutex() {
  static auto* const instance = new ProcessMutex;  // captures of static objects may end later
  return *instance;
}

void assign(at::Generator to, const at::Generator& from) {
  const GeneratorLock lock(to);
  to.set_state(from.get_state());
}

}  // namespace

GeneratorLock::GeneratorLock(at::Generator generator) : before_fork_(generatorsMutex()), lock_(generator.mutex()) {}

at::Generator copyOf(at::Generator generator) {
  const GeneratorLock lock(generator);
  return generator.clone();
}

bool isFreshlySeeded(const at::Generator& generator) {
  const at::Generator fresh = at::detail::createCPUGenerator(generator.current_seed());
  return same(cpu(generator)->engine().data(), cpu(fresh)->engine().data()) &&
         !cpu(generator)->next_double_normal_sample();
}

// A spare of single precision: seeding drops it, states hold it, and no kernel of the CPU asks for it.
void mark(const at::Generator& generator) {
  if (generator.device().is_cpu()) cpu(generator)->set_next_float_normal_sample(kMark);
}

bool isMarked(const at::Generator& generator) {
  return generator.device().is_cpu() && cpu(generator)->next_float_normal_sample() == kMark;
}

void unmark(const at::Generator& generator, const at::Generator& before) {
  if (isMarked(generator)) cpu(generator)->set_next_float_normal_sample(cpu(before)->next_float_normal_sample());
}

RandomStream::RandomStream(at::Generator generator, const at::Generator* start, const at::Generator& saved)
    : generator_(std::move(generator)), saved_(saved) {
  if (start != nullptr && start->defined()) assign(generator_, copyOf(*start));
  start_ = copyOf(generator_);
  places_[hashOf(start_)] = {};
}

std::optional<RandomStream::Place> RandomStream::placeNow() const {
  const auto found = places_.find(hashOf(copyOf(generator_)));
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

RandomStream::~RandomStream() { assign(generator_, saved_); }

void RandomStream::before() {
  before_ = copyOf(generator_);
  place_ = placeNow();
}

int64_t RandomStream::drawsSince(int64_t limit) const {
  if (hasOffsets()) {
    const bool is_same = generator_.current_seed() == before_.current_seed();
    return is_same ? static_cast<int64_t>(generator_.get_offset() - before_.get_offset()) : -1;
  }
  const at::mt19937_data_pod target = cpu(generator_)->engine().data();
  at::mt19937 engine = cpu(before_)->engine();
  // data() copies the whole state, so compare only where the position inside the block agrees.
  at::mt19937_data_pod data = engine.data();
  int64_t position = data.next_;
  int64_t left = data.left_;
  for (int64_t draws = 0; draws <= limit; ++draws) {
    if (position == target.next_ && left == target.left_ && same(engine.data(), target)) return draws;
    engine();
    if (--left == 0) {
      left = at::MERSENNE_STATE_N;
      position = 0;
    }
    ++position;
  }
  return -1;
}

void RandomStream::rewind() { assign(generator_, before_); }

std::optional<double> RandomStream::spareBefore() const {
  return hasOffsets() ? std::nullopt : cpu(before_)->next_double_normal_sample();
}

std::optional<double> RandomStream::spareNow() const {
  return hasOffsets() ? std::nullopt : cpu(generator_)->next_double_normal_sample();
}

void RandomStream::goTo(const at::Generator& state) { assign(generator_, state); }

void RandomStream::turnSpare() {
  rewind();
  const bool has_spare = spareBefore().has_value();
  cpu(generator_)->set_next_double_normal_sample(has_spare ? std::nullopt : std::optional(kAnySpare));
}

int64_t RandomStream::drawsBehindPair(double spare, int64_t draws) const {
  constexpr int64_t kPair = 4;
  at::mt19937 engine = cpu(before_)->engine();
  std::array<uint32_t, kPair> words{};  // the last ones
  int64_t behind = -1;
  for (int64_t i = 0; i < draws; ++i) {
    std::shift_left(words.begin(), words.end(), 1);
    words.back() = engine();
    // The kernels' own functions may round in another way.
    if (i + 1 >= kPair && std::abs(spareOf(words) - spare) <= 1e-9 * std::abs(spare)) behind = draws - i - 1;
  }
  return behind;
}

void RandomStream::advance(const BodyDraws& drawn) {
  Place end = *place_;
  if (drawn.normals.count > 0) end.spare = end.draws + drawn.normals.spare;
  end.draws += drawn.draws;
  end.normals += drawn.normals.count;
  places_[hashOf(generator_)] = end;
}

}  // namespace abele::capture
