// What the program has marked as its loss.
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
  /// line: the user's. summed_rows: of a loss that is a sum over this many rows; dividing it by them gives a loss
  /// again.
  void mark(const at::Tensor& loss, ir::ValueId value, const std::string& line, int64_t summed_rows);
  /// A loss inside torch.func.grad and its kin: what it is for is done there. It is no loss of the training.
  void passOver(ir::ValueId value, const std::string& line);

  /// The tensor that torch.func.vmap, grad and their kin have wrapped: of a batch, all of it.
  struct Unwrapped {
    at::Tensor tensor;
    bool is_differentiated = false;
  };
  static Unwrapped unwrapped(const at::Tensor& loss);

  /// Was it the last to be marked, and is it a sum over this many rows?
  bool isSumOver(const at::Tensor& loss, double rows) const;
  /// The one loss that feeds no other. Throws E0102, E0103.
  std::pair<at::Tensor, ir::ValueId> find(const ir::Graph& graph) const;
  /// Lets go of the tensors, and so of the autograd graphs behind them.
  void release() { marks_.clear(); }

 private:
  struct Mark {
    at::Tensor tensor;
    ir::ValueId value = ir::kNone;
    std::string line;
    int64_t summed_rows = 0;
  };
  std::vector<Mark> marks_;
  std::optional<std::string> passed_over_;  // the line of the last
};

}  // namespace abele::capture
