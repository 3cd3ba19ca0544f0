// Memory for trials of bits.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

namespace abele::runtime {

/// Elements from the start of a cache line to the tensor's first.
inline int64_t misalignment(const at::Tensor& tensor) {
  constexpr uintptr_t kLine = 64;
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kLine) / tensor.itemsize();
}

/// A tensor of the same type, strides and place in a cache line, in memory beside the device's own, so that none of it
/// is kept for later steps.
class Scratch {
 public:
  explicit Scratch(const at::Tensor& like) {
    constexpr std::size_t kLine = 64;
    int64_t extent = misalignment(like) + 1;
    for (int64_t d = 0; d < like.dim(); ++d) extent += (like.size(d) - 1) * like.stride(d);
    memory_.reset(
        std::aligned_alloc(kLine, (static_cast<std::size_t>(extent * like.itemsize()) + kLine - 1) / kLine * kLine));
    if (!memory_) throw std::bad_alloc();
    whole_ = at::from_blob(memory_.get(), {extent}, like.options());
    tensor_ = whole_.as_strided(like.sizes(), like.strides(), misalignment(like));
  }
  void fill(at::Generator& generator) { whole_.normal_(0, 1, generator); }
  at::Tensor& tensor() { return tensor_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  at::Tensor whole_, tensor_;
};

}  // namespace abele::runtime
