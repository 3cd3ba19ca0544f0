// Annotations that are hints: they are checked and have no effect. Source: spec annotations.md sections 2 and 5.
#include <ATen/core/Tensor.h>

#include "abele/annotate.h"
#include "base/at_end.h"
#include "base/error.h"
#include "capture/annotate.h"

namespace abele {
namespace {

thread_local bool in_multi_conv = false;

}  // namespace

at::Tensor setAvailableMemory(const at::Tensor& tensor, double proportion) {
  ABELE_REQUIRE(proportion >= 0 && proportion <= 1, E0702,
                {.what = cat("available memory proportion is ", proportion), .expected = "a number in 0..1"});
  return tensor;
}

MultiConv& MultiConv::note(const char* setting, size_t values) {
  std::erase_if(settings_, [&](const Setting& each) { return each.name == setting; });
  settings_.push_back({setting, values});
  return *this;
}

MultiConv& MultiConv::availableMemoryProportions(std::vector<double> shares) {
  return note("availableMemoryProportions", shares.size());
}
MultiConv& MultiConv::partialsTypes(std::vector<FloatType> types) {
  for (const FloatType type : types)
    ABELE_REQUIRE(type != FloatType::kBFloat16, E0702,
                  {.what = "partialsTypes takes kFloat or kHalf", .found = "kBFloat16"});
  return note("partialsTypes", types.size());
}
MultiConv& MultiConv::enableConvDithering(std::vector<bool> enable) {
  return note("enableConvDithering", enable.size());
}
MultiConv& MultiConv::planType(MultiConvPlanType) { return note("planType", 1); }
MultiConv& MultiConv::perConvReservedTiles(int64_t) { return note("perConvReservedTiles", 1); }
MultiConv& MultiConv::cycleBackOff(double) { return note("cycleBackOff", 1); }

void MultiConv::run(const std::function<void()>& body) const {
  ABELE_REQUIRE(body, E0708, {.what = "MultiConv::run got an empty function", .remedy = "pass a function"});
  if (!capture::isCapturing()) return body();
  ABELE_REQUIRE(!in_multi_conv, E0710, {.what = "a MultiConv inside a MultiConv"});
  const int64_t before = capture::numOperators("convolution");
  {
    in_multi_conv = true;
    const AtEnd outside([] { in_multi_conv = false; });
    body();
  }
  const auto count = static_cast<size_t>(capture::numOperators("convolution") - before);
  ABELE_REQUIRE(count != 0, E0710, {.what = "a MultiConv without a convolution inside"});
  for (const Setting& setting : settings_)
    ABELE_REQUIRE(
        setting.values == 1 || setting.values == count, E0710,
        {.what = cat("MultiConv::", setting.name, " has ", setting.values, " values for ", count, " convolutions"),
         .expected = "one value, or one for each convolution"});
}

}  // namespace abele
