// Notices a model's tensors that somebody wrote after they were copied to or from the device. Used by session.cc.
#pragma once

#include <cstdint>
#include <vector>

namespace at {
class Tensor;
}

namespace abele::host {

/// What the tensors held when they were last in step with the device: a few of their bytes, so that the watch costs
/// about nothing. It finds every write into all of a tensor; of writes into single elements that torch counts (in
/// place, not through .data) those into small tensors for sure, those into large ones mostly. Threads: one caller at a
/// time.
class WeightWatch {
 public:
  /// Host tensor `index` is in step with the device.
  void note(size_t index, const at::Tensor& host);
  /// Host tensor `index` is the device's own memory: it is in step whoever writes it.
  void forget(size_t index);
  /// The first that no longer is what it was; -1: none. Tensors that are offloaded are not looked at.
  int64_t firstEdited(const std::vector<at::Tensor*>& hosts) const;

 private:
  struct Mark {
    bool is_watched = false;
    uint32_t version = 0;
    uint64_t few = 0, many = 0;  // of bytes spread over the tensor
  };
  std::vector<Mark> marks_;
};

}  // namespace abele::host
