#include "capture/elements_text.h"

#include <algorithm>

#include "base/cat.h"

namespace abele::capture {
namespace {

std::string elementText(const at::Scalar& number) {
  if (number.isBoolean()) return number.toBool() ? "true" : "false";
  if (number.isComplex()) return cat(number.toComplexDouble().real(), " + ", number.toComplexDouble().imag(), "i");
  return number.isFloatingPoint() ? cat(number.toDouble()) : cat(number.toLong());
}

}  // namespace

std::string elementsText(const at::Tensor& tensor, int64_t most) {
  std::string text;
  const at::Tensor flat = tensor.reshape({-1});
  for (int64_t i = 0; i < std::min(flat.numel(), most); ++i) text += cat(i ? ", " : "", elementText(flat[i].item()));
  return flat.numel() > most ? text + ", ..." : text;
}

}  // namespace abele::capture
