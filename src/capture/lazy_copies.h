// Lazy conjugates and negatives, which are computed at once: a view in the graph is geometry and nothing else.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/position.h"

namespace abele::capture {

/// What eager would see through such a view when either side is written later is refused then.
/// Threads: owner only.
class LazyCopies {
 public:
  void add(const at::Tensor& source, const at::Tensor& copy);
  /// Throws E0106 where the tensor's memory is that of a source or of a copy which both still live.
  void requireNoneOf(const at::Tensor& written, const Position& position);

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::vector<std::pair<WeakStorage, WeakStorage>> copies_;  // source and copy
};

}  // namespace abele::capture
