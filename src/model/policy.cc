#include "model/policy.h"

#include <utility>

#include "compile/from_options.h"
#include "model/devices.h"

namespace abele::host {

ProgramOptions programOptions(Options::Values values, bool training, const Policy& policy) {
  const auto choose = [&](const char* option, bool otherwise) {
    if (!values.find(option)) values.set("Options", option, OptionValue(otherwise));
  };
  choose("enforce_pipeline_minimum", !policy.short_pipelines);
  choose("share_weights", policy.shares_weights);
  ExecutionStrategy& strategy = values.strategy;
  const bool splits = strategy.auto_stage == AutoStage::kAutoSplit && strategy.split_devices == 0;
  if (splits && policy.most_devices > 0) strategy.split_devices = devicesToSplitFor(availableCores(), values);
  ProgramOptions options = programOptions(values, training);
  const bool is_asked = values.find("check_capture") && options.checks_capture != CaptureCheck::kOff;
  if (!policy.checks_captures) options.checks_capture = is_asked ? CaptureCheck::kWarns : CaptureCheck::kOff;
  return options;
}

}  // namespace abele::host
