// Figures of a session's last step: stages, moments of input and output, cycles, anchored values.
#include <algorithm>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "host/session_impl.h"
#include "host/tensor_names.h"

namespace abele::host {

SessionReport Session::report() const {
  SessionReport report;
  report.capture_s = impl_->capture_s;
  report.compile_s = impl_->compile_s;
  report.from_cache = impl_->from_cache;
  if (!impl_->compiled) return report;
  const Compiled& compiled = *impl_->compiled;
  report.schedule = compiled.schedule;
  report.schedule_reason = compiled.schedule_reason;
  const runtime::StepReport& step = impl_->last_step;
  report.step_ns = step.wall_ns;
  report.off_chip_bytes = exe::offChipBytes(compiled.executable);
  report.off_chip_file_bytes = compiled.backend->fileBytes();
  report.heap_allocations = impl_->last_step_allocations;
  report.workspace_bytes = impl_->workspace_bytes;
  for (const CompiledStage& stage : compiled.stages)
    report.stages.push_back({.name = stage.name,
                             .device = stage.device,
                             .replica = stage.replica,
                             .peak_bytes = exe::peakBytes(compiled.executable, stage.worker),
                             .mapped_bytes = compiled.backend->allocatedBytes(stage.worker)});
  const size_t num_stages = compiled.stages.size() / static_cast<size_t>(compiled.executable.replicas);
  int64_t busy_ns = 0;
  for (const runtime::ActionTime& action : step.actions) {
    const int64_t took = action.end_ns - action.begin_ns;
    busy_ns += took;
    const exe::Segment& segment = compiled.executable.segments[action.segment];
    report.stages.at(segment.replica * num_stages + segment.stage).busy_ns += took;
  }
  // A device that holds several stages waits only while it works for none of them.
  std::vector<int64_t> worker_busy_ns(compiled.executable.workers.size(), 0);
  for (size_t stage = 0; stage < compiled.stages.size(); ++stage)
    worker_busy_ns[compiled.stages[stage].worker] += report.stages[stage].busy_ns;
  for (size_t stage = 0; stage < compiled.stages.size(); ++stage)
    report.stages[stage].waiting_ns = step.wall_ns - worker_busy_ns[compiled.stages[stage].worker];
  const double worker_time = static_cast<double>(step.wall_ns) * static_cast<double>(worker_busy_ns.size());
  report.bubble = worker_time > 0 ? 1.0 - static_cast<double>(busy_ns) / worker_time : 0;
  return report;
}

namespace {

/// First begin and last end of the forward segments, by micro-batch, replica fastest.
struct ForwardTimes {
  std::vector<double> begin_s, end_s;
};

ForwardTimes forwardTimes(const SessionOptions& options, const Compiled& compiled, const runtime::StepReport& step) {
  const exe::Executable& executable = compiled.executable;
  const auto count = static_cast<size_t>(options.device_iterations * options.gradient_accumulation * options.replicas);
  ForwardTimes times{std::vector<double>(count, -1), std::vector<double>(count, 0)};
  for (const runtime::ActionTime& action : step.actions) {
    const exe::Segment& segment = executable.segments[action.segment];
    if (segment.direction != exe::Direction::kForward) continue;
    const int64_t at = executable.globalMicroBatch(action.micro_batch, segment.replica);
    double& begin = times.begin_s.at(at);
    double& end = times.end_s.at(at);
    const double begin_s = static_cast<double>(action.begin_ns) * 1e-9;
    begin = begin < 0 ? begin_s : std::min(begin, begin_s);
    end = std::max(end, static_cast<double>(action.end_ns) * 1e-9);
  }
  for (double& begin : times.begin_s) begin = std::max(begin, 0.0);
  return times;
}

}  // namespace

PerfCounters Session::perfCounters() const {
  const Compiled& compiled = impl_->require("perfCounters()");
  const SessionOptions& options = impl_->options;
  PerfCounters counters;
  std::vector<double> inputs, outputs;
  if (!impl_->last_step.actions.empty() && !options.synthetic_data) {
    ForwardTimes times = forwardTimes(options, compiled, impl_->last_step);
    for (const Position& p : returnedMicroBatches(options, options.output_mode, options.output_period))
      outputs.push_back(
          times.end_s[compiled.executable.globalMicroBatch(p.micro_batch, static_cast<int32_t>(p.replica))]);
    if (options.output_mode == OutputMode::kSum) outputs.erase(outputs.begin(), outputs.end() - options.replicas);
    inputs = std::move(times.begin_s);
  }
  counters.input.assign(compiled.input_types.size(), inputs);
  counters.input_complete = counters.input;
  counters.output.assign(compiled.results.size(), outputs);
  counters.output_complete = counters.output;
  return counters;
}

int64_t Session::cycles() const {
  impl_->require("cycles()");
  return static_cast<int64_t>(static_cast<double>(impl_->last_step.wall_ns) * 1e-9 *
                              static_cast<double>(kCyclesPerSecond));
}

at::Tensor Session::anchor(const std::string& short_name) const {
  const Compiled& compiled = impl_->require("anchor()");
  const std::vector<Anchor>& asked = impl_->options.anchors;
  const bool known = std::any_of(compiled.anchors.begin(), compiled.anchors.end(),
                                 [&](const CompiledAnchor& anchor) { return anchor.name == short_name; }) ||
                     std::any_of(asked.begin(), asked.end(), [&](const Anchor& anchor) {
                       return anchor.short_name == short_name && anchor.long_name == kFinalLossScale;
                     });
  ABELE_REQUIRE(known, E0708,
                {.what = cat("no tensor is anchored as ", short_name),
                 .remedy = cat(inLanguage("opts", "options"),
                               ".anchorTensor(short_name, long_name) before the model is wrapped")});
  auto found = impl_->anchored.find(short_name);
  ABELE_REQUIRE(
      found != impl_->anchored.end(), E0705,
      {.what = cat("anchor ", short_name, " has no value before the first call"), .remedy = "call the model"});
  return found->second;
}

}  // namespace abele::host
