// The answer of a comparison that steered the program while it was captured must be that of every step.
#include <ATen/ops/equal.h>

#include "base/error.h"
#include "operators/library.h"

namespace abele::operators {

void requireEqualKernel(const at::Tensor& x, const at::Tensor& y, bool answer) {
  const auto text = [](bool equal) { return equal ? "equal tensors" : "different tensors"; };
  ABELE_REQUIRE(at::equal(x, y) == answer, E0101,
                {.what = "torch::equal, which steered forward while it was captured, has another answer in this step",
                 .found = text(!answer),
                 .expected = text(answer),
                 .remedy = "make a model for each case, or destroy() this one and call it again; attention is the same "
                           "for both when query, key and value are one tensor"});
}

}  // namespace abele::operators
