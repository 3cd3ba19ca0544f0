// Memory for trials, which compare the bits of two kernels.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

namespace abele::kernels {

/// Elements from the start of a cache line to the tensor's first element.
inline int64_t misalignment(const at::Tensor& tensor) {
  constexpr uintptr_t kLine = 64;
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kLine) / tensor.itemsize();
}

/// Elements from the start of that cache line to the tensor's last element.
inline int64_t extentOf(const at::Tensor& tensor) {
  int64_t extent = misalignment(tensor) + 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) extent += (tensor.size(d) - 1) * tensor.stride(d);
  return extent;
}

/// Adds to the key all properties by which a kernel may choose its algorithm.
inline void addLayout(const at::Tensor& tensor, std::vector<int64_t>& key) {
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
  key.push_back(misalignment(tensor));
}

/// Temporary memory that is not kept for later steps: it returns to the system at once.
class ScratchMemory {
 public:
  ScratchMemory(int64_t elements, const at::TensorOptions& options)
      : bytes_(static_cast<std::size_t>(elements) * options.dtype().itemsize()),
        memory_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    whole_ = at::from_blob(memory_, {elements}, options);
  }
  ~ScratchMemory() { ::munmap(memory_, bytes_); }
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  void fill(at::Generator& generator) { whole_.normal_(0, 1, generator); }
  at::Tensor rows(int64_t rows, int64_t columns) const {
    return whole_.narrow(0, 0, rows * columns).view({rows, columns});
  }
  /// A tensor with the same strides and the same position in a cache line.
  at::Tensor like(const at::Tensor& tensor) const {
    return whole_.as_strided(tensor.sizes(), tensor.strides(), misalignment(tensor));
  }

 private:
  std::size_t bytes_;
  void* memory_;
  at::Tensor whole_;
};

}  // namespace abele::kernels
