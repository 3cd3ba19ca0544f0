// The losses that the program has marked.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/graph.h"

namespace abele::capture {

/// Threads: owner only.
class Losses {
 public:
  /// line: the user's line. summed_rows: for a loss that is a sum over rows, their number; the quotient by this number
  /// is a loss, too.
  void mark(const at::Tensor& loss, ir::ValueId value, const std::string& line, int64_t summed_rows);
  /// Notes a loss inside torch.func.grad or a similar transform. The transform uses it; it is not a loss of the
  /// training.
  void passOver(ir::ValueId value, const std::string& line);

  /// The tensor that torch.func.vmap, grad and similar transforms have wrapped. For vmap it is the whole batch.
  struct Unwrapped {
    at::Tensor tensor;
    bool is_differentiated = false;
  };
  static Unwrapped unwrapped(const at::Tensor& loss);

  /// Whether this tensor was marked last and is a sum over this many rows.
  bool isSumOver(const at::Tensor& loss, double rows) const;
  /// The one loss that feeds no other. Throws E0102, E0103.
  std::pair<at::Tensor, ir::ValueId> find(const ir::Graph& graph) const;
  /// Releases the tensors and with them their autograd graphs.
  void release() { marks_.clear(); }

 private:
  struct Mark {
    at::Tensor tensor;
    ir::ValueId value = ir::kNone;
    std::string line;
    int64_t summed_rows = 0;
  };
  std::vector<Mark> marks_;
  std::optional<std::string> passed_over_;  // the line of the last loss that was passed over
};

}  // namespace abele::capture
