#include "calls/policy.h"

#include "calls/devices.h"
#include "compile/from_options.h"

namespace abele::calls {

compile::ProgramOptions programOptions(Options::Values values, bool training, const Policy& policy) {
  const auto choose = [&](const char* option, bool otherwise) {
    if (!values.find(option)) values.set("Options", option, options::OptionValue(otherwise));
  };
  choose("enforce_pipeline_minimum", !policy.short_pipelines);
  choose("share_weights", policy.shares_weights);
  ExecutionStrategy& strategy = values.strategy;
  const bool splits = strategy.auto_stage == AutoStage::kAutoSplit && strategy.split_devices == 0;
  if (splits && policy.most_devices > 0) strategy.split_devices = devicesToSplitFor(availableCores(), values);
  compile::ProgramOptions options = compile::programOptions(values, training);
  const bool is_asked = values.find("check_capture") && options.checks_capture != compile::CaptureCheck::kOff;
  if (!policy.checks_captures)
    options.checks_capture = is_asked ? compile::CaptureCheck::kWarns : compile::CaptureCheck::kOff;
  return options;
}

}  // namespace abele::calls
