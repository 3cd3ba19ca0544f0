// Samples in files: rows of tensors that stay in their file until they are read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "files/tensor_file.h"

namespace abele::data {

/// Threads: safe.
class StoredRows {
 public:
  /// paths: safetensors files. A tensor that several files have is one tensor, whose rows follow each other in the
  /// order of the files. Reads only the headers. Throws E0712, E0501; E0801 if parts of a tensor differ in the type or
  /// shape of their rows.
  explicit StoredRows(const std::vector<std::string>& paths);

  struct Part {
    const files::TensorFileReader* file = nullptr;
    int64_t first_row = 0, rows = 0;  // the part's rows in the whole tensor
  };
  struct Tensor {
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes;  // empty: a scalar, which has no rows
    std::vector<Part> parts;     // in the order of their rows
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Checks the contents of a tensor if its files have checksums. Throws E0501, E0712.
  /// Requires: the tensor exists.
  void requireWhole(const std::string& name) const;
  /// Returns these rows, in this order. Throws E0712 if a file cannot be read any more.
  /// Requires: the tensor exists and has these rows.
  at::Tensor read(const std::string& name, std::span<const int64_t> rows) const;

 private:
  std::vector<std::unique_ptr<files::TensorFileReader>> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace abele::data
