// Notices writes to a model's tensors after they were copied to or from the device. Used by session.cc.
#pragma once

#include <cstdint>
#include <vector>

namespace at {
class Tensor;
}

namespace abele::session {

/// Remembers a few bytes of each tensor from the last time when host and device were equal, so it costs almost nothing.
/// It finds every write to a whole tensor. It also finds writes to single elements that torch counts (in place, not
/// through .data): always in small tensors, mostly in large ones. Threads: one caller at a time.
class WeightWatch {
 public:
  /// Notes that host tensor `index` equals the device's.
  void note(size_t index, const at::Tensor& host);
  /// Stops watching host tensor `index`, because it is the device's own memory.
  void forget(size_t index);
  /// The index of the first tensor that changed; -1: none did. Ignores tensors that are offloaded.
  int64_t firstEdited(const std::vector<at::Tensor*>& hosts) const;
  /// The same, but also finds every tensor whose version torch has increased, even if its contents did not change.
  int64_t firstWritten(const std::vector<at::Tensor*>& hosts) const;

 private:
  struct Mark {
    bool is_watched = false;
    uint32_t version = 0;
    uint64_t few = 0, many = 0;  // hashes of words spread over the tensor
  };
  int64_t first(const std::vector<at::Tensor*>& hosts, bool may_be_restored) const;

  std::vector<Mark> marks_;
};

}  // namespace abele::session
