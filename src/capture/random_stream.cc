#include "capture/random_stream.h"

#include <mutex>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

namespace abele::capture {
namespace {

at::CPUGeneratorImpl* cpu(const at::Generator& generator) { return generator.get<at::CPUGeneratorImpl>(); }

bool same(const at::mt19937_data_pod& a, const at::mt19937_data_pod& b) {
  return a.next_ == b.next_ && a.left_ == b.left_ && a.state_ == b.state_;
}

uint64_t hashOf(const at::Generator& generator) {
  if (!generator.device().is_cpu()) return generator.current_seed() * 31 + generator.get_offset();
  const at::mt19937_data_pod data = cpu(generator)->engine().data();
  const std::string_view words(reinterpret_cast<const char*>(data.state_.data()), sizeof data.state_);
  return std::hash<std::string_view>()(words) * 31 + static_cast<uint64_t>(data.left_);
}

// By value: a Generator is a shared pointer whose mutex() is not const.
at::Generator copyOf(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.clone();
}

void assign(at::Generator to, const at::Generator& from) {
  std::lock_guard lock(to.mutex());
  to.set_state(from.get_state());
}

}  // namespace

RandomStream::RandomStream(const at::Generator* start, c10::Device device)
    : generator_(at::globalContext().defaultGenerator(device)), saved_(copyOf(generator_)) {
  if (start != nullptr && start->defined()) assign(generator_, copyOf(*start));
  offsets_[hashOf(generator_)] = 0;
}

RandomStream::~RandomStream() { assign(generator_, saved_); }

void RandomStream::before() {
  before_ = copyOf(generator_);
  auto found = offsets_.find(hashOf(before_));
  offset_ = found == offsets_.end() ? -1 : found->second;
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

void RandomStream::advance(int64_t draws) {
  total_ = std::max(total_, offset_ + draws);
  offsets_[hashOf(generator_)] = offset_ + draws;
}

}  // namespace abele::capture
