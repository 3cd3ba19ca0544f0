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
  ir::Graph graph;  // arguments are the inputs, externals the constants that it reads; its outputs are the
                    // results, then the new contents of what it writes
  std::vector<at::Tensor> reads;  // memory of the enclosing program, by external
  std::vector<int32_t> written;   // externals that it writes
  std::vector<at::Tensor> results;
};

/// Requires: a capture on this thread; it does not see what body does. Inputs go in by value; what the body writes
/// around it is as it was before.
/// Throws E0106 when body draws random numbers twice or returns no tensor; and what capture() throws.
BodyCapture captureBody(const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& body,
                        const std::vector<at::Tensor>& inputs, void* mode_object);

}  // namespace abele::capture
