#include "session/weight_watch.h"

#include <algorithm>
#include <cstring>

#include <ATen/core/Tensor.h>

#include "memory/offload.h"

namespace abele::session {
namespace {

constexpr int64_t kFewWords = 4, kManyWords = 256;  // words of 8 bytes

/// Hash of up to `words` words at equal distances in the tensor's memory, including its first and last word.
uint64_t sample(const at::Tensor& tensor, int64_t words) {
  // Avoids torch's check, because a capture on another thread may have locked the memory.
  const auto* bytes =
      static_cast<const char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) +
      tensor.storage_offset() * tensor.element_size();
  const auto size = static_cast<int64_t>(tensor.nbytes());
  const int64_t all = std::max<int64_t>(1, size / 8), taken = std::min(words, all);
  uint64_t hash = 14695981039346656037U;
  for (int64_t k = 0; k < taken; ++k) {
    const int64_t begin = taken == 1 ? 0 : k * (all - 1) / (taken - 1) * 8;
    // The last word also covers bytes that do not fill a word.
    const int64_t end = k == taken - 1 ? size : std::min(size, begin + 8);
    for (int64_t at = begin; at < end; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, static_cast<size_t>(std::min<int64_t>(8, end - at)));
      hash = (hash ^ word) * 1099511628211U;
    }
  }
  return hash;
}

bool canWatch(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.numel() > 0 && tensor.is_non_overlapping_and_dense() && !tensor.is_inference() &&
         tensor.storage().nbytes() >= tensor.storage_offset() * tensor.element_size() + tensor.nbytes() &&
         !memory::isOffloaded(tensor);
}

}  // namespace

void WeightWatch::note(size_t index, const at::Tensor& host) {
  if (marks_.size() <= index) marks_.resize(index + 1);
  Mark& mark = marks_[index];
  mark.is_watched = canWatch(host);
  if (!mark.is_watched) return;
  mark = {true, static_cast<uint32_t>(host._version()), sample(host, kFewWords), sample(host, kManyWords)};
}

void WeightWatch::forget(size_t index) {
  if (index < marks_.size()) marks_[index].is_watched = false;
}

int64_t WeightWatch::firstEdited(const std::vector<at::Tensor*>& hosts) const { return first(hosts, true); }
int64_t WeightWatch::firstWritten(const std::vector<at::Tensor*>& hosts) const { return first(hosts, false); }

int64_t WeightWatch::first(const std::vector<at::Tensor*>& hosts, bool may_be_restored) const {
  for (size_t i = 0; i < std::min(marks_.size(), hosts.size()); ++i) {
    const Mark& mark = marks_[i];
    if (!mark.is_watched || !hosts[i] || !canWatch(*hosts[i])) continue;
    if (sample(*hosts[i], kFewWords) != mark.few) return static_cast<int64_t>(i);
    // The writer may have restored the old contents, as a capture does.
    if (static_cast<uint32_t>(hosts[i]->_version()) != mark.version &&
        (!may_be_restored || sample(*hosts[i], kManyWords) != mark.many))
      return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace abele::session
