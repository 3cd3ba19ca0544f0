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
  ir::Graph graph;  // its externals are the constants that it reads; its outputs are the results, then the written
                    // tensors' new contents
  std::vector<at::Tensor> reads;  // tensors of the enclosing program, by external
  std::vector<int32_t> written;   // externals that the body writes
  std::vector<at::Tensor> results;
};

/// Requires: a capture on this thread, which does not record the operators of body. body gets copies of the inputs.
/// Tensors around it that it writes are restored.
/// Throws E0106 if body draws random numbers twice or returns no tensor, and the errors of capture().
BodyCapture captureBody(const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& body,
                        const std::vector<at::Tensor>& inputs, void* mode_object);

}  // namespace abele::capture
