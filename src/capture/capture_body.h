// Records a function inside a capture as a graph of its own. Used by operators/control_flow.cc.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "ir/graph.h"

namespace at {
class Tensor;
}

namespace abele::capture {

struct BodyCapture {
  ir::Graph graph;                // arguments are the inputs, externals the constants that it reads
  std::vector<at::Tensor> reads;  // tensors of the enclosing program, by external
  std::vector<at::Tensor> results;
};

/// Requires: a capture on this thread; it does not see what body does. Inputs go in by value.
/// Throws E0106 when body draws random numbers twice, writes into tensors around it or returns no tensor; and what
/// capture() throws.
BodyCapture captureBody(const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& body,
                        const std::vector<at::Tensor>& inputs, void* mode_object);

}  // namespace abele::capture
