// The factor that the loss is multiplied by: the user's number times the one that automatic scaling finds.
// Source: spec optim.md section 4.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <utility>

#include "host/session_impl.h"

namespace abele::host {
namespace {

// Backward may start in float16, which holds no larger power of two.
constexpr double kLargest = 32768;

}  // namespace

double finalLossScale(const Compiled& compiled) { return compiled.optimizer.loss_scaling * compiled.loss_scale_factor; }

void adaptLossScale(Compiled& compiled, const SessionOptions& options) {
  if (!options.auto_loss_scaling || !options.training) return;
  const runtime::GradientSizes found = compiled.backend->takeGradientSizes();
  compiled.counted.large += found.large;
  compiled.counted.all += found.all;
  compiled.updates_counted += options.device_iterations;
  if (compiled.updates_counted < options.loss_scale_period) return;
  const runtime::GradientSizes counted = std::exchange(compiled.counted, {});
  compiled.updates_counted = 0;
  if (counted.all == 0) return;  // nothing in float16
  const double share = static_cast<double>(counted.large) / static_cast<double>(counted.all);
  if (share > options.loss_scale_threshold)
    compiled.loss_scale_factor /= 2;
  else if (finalLossScale(compiled) * 2 <= kLargest)
    compiled.loss_scale_factor *= 2;
  setHypers(compiled, compiled.optimizer);
}

at::Tensor lossScaleAnchor(const SessionOptions& options, const Anchor& anchor, double scale) {
  int64_t count = static_cast<int64_t>(returnedMicroBatches(options, anchor.mode, anchor.period).size());
  if (anchor.mode == OutputMode::kSum) {
    scale *= static_cast<double>(count / options.replicas);
    count = options.replicas;
  }
  return count == 1 ? at::full({}, scale) : at::full({count}, scale);
}

}  // namespace abele::host
