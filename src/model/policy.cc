#include "model/policy.h"

#include <utility>

#include "compile/from_options.h"
#include "model/devices.h"

namespace abele::host {

ProgramOptions programOptions(Options::Values values, bool training, const Policy& policy) {
  values.set("Options", "enforce_pipeline_minimum", OptionValue(!policy.short_pipelines));
  values.set("Options", "share_weights", OptionValue(policy.shares_weights));
  ExecutionStrategy& strategy = values.strategy;
  const bool splits = strategy.auto_stage == AutoStage::kAutoSplit && strategy.split_devices == 0;
  if (splits && policy.most_devices > 0) strategy.split_devices = devicesToSplitFor(availableCores(), values);
  ProgramOptions options = programOptions(values, training);
  const bool is_asked = values.expert("abele.checkCapture") && options.checks_capture != CaptureCheck::kOff;
  if (!policy.checks_captures) options.checks_capture = is_asked ? CaptureCheck::kWarns : CaptureCheck::kOff;
  return options;
}

}  // namespace abele::host
