// Values that steered the program while it was captured must be the same in every step: the answer of a comparison, and
// values that the program read.
#include <cstring>

#include <ATen/ops/equal.h>

#include "base/error.h"
#include "capture/elements_text.h"
#include "operators/library.h"

namespace abele::operators {
namespace {

constexpr int64_t kMostShown = 8;  // values shown in a message

}  // namespace

void requireEqualKernel(const at::Tensor& x, const at::Tensor& y, bool answer) {
  const auto text = [](bool equal) { return equal ? "equal tensors" : "different tensors"; };
  ABELE_REQUIRE(at::equal(x, y) == answer, E0101,
                {.what = "forward called torch::equal while it was captured, and the result differs in this step",
                 .found = text(!answer),
                 .expected = text(answer),
                 .remedy = "make a model for each case, or destroy() this one and call it again; attention is the same "
                           "for both when query, key and value are one tensor"});
}

void requireSameKernel(const at::Tensor& x, const at::Tensor& expected, std::string reader) {
  const at::Tensor now = x.contiguous(), captured = expected.contiguous();
  // Compares bits: NaNs are equal, and zeros of different signs are not.
  const bool is_same = std::memcmp(now.const_data_ptr(), captured.const_data_ptr(), now.nbytes()) == 0;
  ABELE_REQUIRE(
      is_same, E0101,
      {.what = "a value that forward read while it was captured differs in this step",
       .at = reader,
       .found = capture::elementsText(now, kMostShown),
       .expected = capture::elementsText(captured, kMostShown),
       .remedy = cat("if forward checks its inputs, correct them; if the value steers the program and seldom changes, "
                     "make a model for each value, or destroy() this one and call it again; if it differs from batch "
                     "to batch, keep it in a tensor (",
                     inLanguage("torch::where, masks, tensor indices), or let the host compute the part that needs it "
                                "(abele::ops::HostCall)"))});
}

}  // namespace abele::operators
