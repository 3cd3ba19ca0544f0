// The factor that multiplies the loss: the user's number times the number that automatic scaling finds.
// Source: spec optim.md section 4.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/log.h"
#include "collective/peers.h"
#include "session/impl.h"

namespace abele::session {
namespace {

// Backward may start in float16, where this is the largest power of two.
constexpr double kLargest = 32768;
// Gradients that still overflow at this factor are infinite or NaN at any factor.
constexpr double kLeast = 1.0 / 32768;

/// Halves the factor after a step whose updates were skipped.
void noteOverflow(Compiled& compiled) {
  compiled.counted = {};
  compiled.updates_counted = 0;
  const double scale = finalLossScale(compiled);
  if (scale <= kLeast) {
    log::warn("gradients are not finite with any loss scale: the update is skipped");
    return;
  }
  compiled.loss_scale_factor /= 2;
  setHypers(compiled, compiled.optimizer);
  log::info("gradients overflow with a loss scale of ", scale, ": the update is skipped, the scale is halved");
}

/// The sizes over all processes, so that all of them adapt alike.
device::GradientSizes ofAllProcesses(const device::GradientSizes& own, collective::Peers& peers) {
  const std::array<int64_t, 3> numbers{own.large, own.all, own.overflowed ? 1 : 0};
  device::GradientSizes sum;
  for (const std::string& text : peers.exchange({reinterpret_cast<const char*>(numbers.data()), sizeof numbers})) {
    std::array<int64_t, 3> theirs{};
    std::memcpy(theirs.data(), text.data(), sizeof theirs);
    sum.large += theirs[0];
    sum.all += theirs[1];
    sum.overflowed |= theirs[2] != 0;
  }
  return sum;
}

}  // namespace

double finalLossScale(const Compiled& compiled) { return compiled.optimizer.loss_scaling * compiled.loss_scale_factor; }

void adaptLossScale(Compiled& compiled, const compile::ProgramOptions& options) {
  if (!options.auto_loss_scaling || !options.training) return;
  device::GradientSizes found = compiled.backend->takeGradientSizes();
  if (compiled.peers) found = ofAllProcesses(found, *compiled.peers);
  if (found.overflowed) {
    noteOverflow(compiled);
    return;
  }
  compiled.counted.large += found.large;
  compiled.counted.all += found.all;
  ++compiled.updates_counted;
  if (compiled.updates_counted < options.loss_scale_period) return;
  const device::GradientSizes counted = std::exchange(compiled.counted, {});
  compiled.updates_counted = 0;
  if (counted.all == 0) return;  // no gradient is in float16
  const double share = static_cast<double>(counted.large) / static_cast<double>(counted.all);
  if (share > options.loss_scale_threshold)
    compiled.loss_scale_factor /= 2;
  else if (finalLossScale(compiled) * 2 <= kLargest)
    compiled.loss_scale_factor *= 2;
  setHypers(compiled, compiled.optimizer);
}

at::Tensor lossScaleAnchor(const compile::ProgramOptions& options, const compile::Anchor& anchor,
                           const std::vector<double>& scales) {
  const int64_t per_step = options.device_iterations * options.gradient_accumulation / compile::stepsPerCall(options);
  std::vector<double> values;
  for (const Position& p : returnedMicroBatches(options, anchor.mode, anchor.period))
    values.push_back(scales.at(p.micro_batch / per_step));
  if (anchor.mode == compile::OutputMode::kSum)
    values.assign(options.replicas, std::accumulate(values.begin(), values.end(), 0.0) / options.replicas);
  if (values.size() == 1) return at::full({}, values[0]);
  return at::tensor(at::ArrayRef<double>(values), at::kFloat);
}

}  // namespace abele::session
