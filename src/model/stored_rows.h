// Samples in files: rows of tensors that stay there until somebody reads them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/tensor_file.h"

namespace abele::host {

/// Threads: safe.
class StoredRows {
 public:
  /// paths: safetensors files. A tensor that several of them have is one, whose rows follow one another in the order of
  /// the files. Reads the headers alone. Throws E0712, E0501; E0801 where parts of a tensor differ in the type or the
  /// shape of their rows.
  explicit StoredRows(const std::vector<std::string>& paths);

  struct Part {
    const TensorFileReader* file = nullptr;
    int64_t first_row = 0, rows = 0;  // of the whole tensor
  };
  struct Tensor {
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes;  // without a dimension: it has no rows
    std::vector<Part> parts;     // in the order of their rows
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Looks through the contents of a tensor where its files have checksums. Throws E0501, E0712.
  /// Requires: there is such a tensor.
  void requireWhole(const std::string& name) const;
  /// These rows, in this order. Throws E0712 when a file cannot be read any more.
  /// Requires: there is such a tensor, which has these rows.
  at::Tensor read(const std::string& name, std::span<const int64_t> rows) const;

 private:
  std::vector<std::unique_ptr<TensorFileReader>> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace abele::host
