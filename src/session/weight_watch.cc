#include "session/weight_watch.h"

#include <algorithm>
#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include "memory/offload.h"

namespace abele::session {
namespace {

constexpr int64_t kFewWords = 4, kManyWords = 256;  // words of 8 bytes

constexpr uint64_t kHashStart = 14695981039346656037U, kHashFactor = 1099511628211U;

// Avoids torch's check, because a capture on another thread may have locked the memory.
const char* bytesAt(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) +
         tensor.storage_offset() * tensor.element_size();
}

/// Continues a hash over these bytes, 8 at a time.
uint64_t hashOn(uint64_t hash, const char* bytes, int64_t size) {
  for (int64_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, static_cast<size_t>(std::min<int64_t>(8, size - at)));
    hash = (hash ^ word) * kHashFactor;
  }
  return hash;
}

/// Hash of up to `count` elements at equal distances, including the first and the last one. The gaps between them may
/// be elements of other tensors.
uint64_t sampleElements(const at::Tensor& tensor, int64_t count) {
  const char* bytes = bytesAt(tensor);
  const int64_t all = tensor.numel(), taken = std::min(count, all), size = tensor.element_size();
  uint64_t hash = kHashStart;
  for (int64_t k = 0; k < taken; ++k) {
    int64_t index = taken == 1 ? 0 : k * (all - 1) / (taken - 1), at = 0;
    for (int64_t d = tensor.dim() - 1; d >= 0; index /= tensor.size(d), --d)
      at += index % tensor.size(d) * tensor.stride(d);
    hash = hashOn(hash, bytes + at * size, size);
  }
  return hash;
}

/// Hash of up to `words` words at equal distances in the tensor's memory, including its first and last word.
uint64_t sample(const at::Tensor& tensor, int64_t words) {
  if (!tensor.is_non_overlapping_and_dense()) return sampleElements(tensor, words);
  const char* bytes = bytesAt(tensor);
  const auto size = static_cast<int64_t>(tensor.nbytes());
  const int64_t all = std::max<int64_t>(1, size / 8), taken = std::min(words, all);
  uint64_t hash = kHashStart;
  for (int64_t k = 0; k < taken; ++k) {
    const int64_t begin = taken == 1 ? 0 : k * (all - 1) / (taken - 1) * 8;
    // The last word also covers bytes that do not fill a word.
    const int64_t end = k == taken - 1 ? size : std::min(size, begin + 8);
    hash = hashOn(hash, bytes + begin, end - begin);
  }
  return hash;
}

bool hasAllElements(const at::Tensor& tensor) {
  return tensor.storage().nbytes() >=
         at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
}

bool canWatch(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.numel() > 0 && !tensor.is_inference() && hasAllElements(tensor) && !memory::isOffloaded(tensor);
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
