// Figures of a session's last step: stages, moments of input and output, cycles, anchored values.
#include <algorithm>
#include <functional>
#include <ranges>
#include <set>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "compile/placement.h"
#include "compile/tensor_names.h"
#include "schedule/machine_text.h"
#include "session/impl.h"

namespace abele::session {

SessionReport Session::report() const {
  impl_->requireIdle("report()");
  SessionReport report;
  report.capture_s = impl_->capture_s;
  report.compile_s = impl_->compile_s;
  if (impl_->compiled) report.phases = impl_->compiled->phases.times();
  report.from_cache = impl_->from_cache;
  if (!impl_->compiled) return report;
  const Compiled& compiled = *impl_->compiled;
  report.schedule = compiled.schedule;
  report.schedule_reason = compiled.schedule_reason;
  if (const schedule::Machine machine = compile::machineOf(impl_->options); machine.hasLinks())
    report.links = cat("(", machine.name, "): ", schedule::linksText(machine));
  const runtime::StepReport& step = impl_->last_step;
  report.step_ns = step.wall_ns;
  report.sent_bytes = impl_->sent_bytes;
  report.off_chip_bytes = exe::offChipBytes(compiled.executable);
  report.off_chip_file_bytes = compiled.backend->fileBytes();
  report.heap_allocations = impl_->last_step_allocations;
  report.workspace_bytes = impl_->workspace_bytes;
  report.shared_weight_bytes = compiled.shared ? compiled.shared->bytes() : 0;
  for (const compile::CompiledStage& stage : compiled.stages)
    report.stages.push_back({.name = stage.name,
                             .device = stage.device,
                             .replica = stage.replica,
                             .peak_bytes = exe::peakBytes(compiled.executable, stage.worker),
                             .mapped_bytes = compiled.backend->allocatedBytes(stage.worker),
                             .resident_bytes = compiled.backend->residentBytes(stage.worker)});
  const size_t num_stages = compiled.stages.size() / static_cast<size_t>(compiled.executable.replicas);
  int64_t busy_ns = 0;
  std::vector<int64_t> idle_ns(compiled.executable.workers.size(), step.wall_ns);
  std::vector<std::set<int32_t>> workers_of;  // by stage
  for (const compile::CompiledStage& stage : compiled.stages) workers_of.push_back({stage.worker});
  for (const runtime::ActionTime& action : step.actions) {
    if (compiled.executable.workers[action.worker].isLink()) continue;
    const int64_t took = action.end_ns - action.begin_ns;
    busy_ns += took;
    const exe::Segment& segment = compiled.executable.segments[action.segment];
    const size_t stage = segment.replica * num_stages + segment.stage;
    report.stages.at(stage).busy_ns += took;
    workers_of.at(stage).insert(action.worker);
    idle_ns[action.worker] -= took;
  }
  // A device that holds several stages waits only while it works for none of them. Several devices may take the
  // micro-batches of a stage in turn.
  for (size_t stage = 0; stage < compiled.stages.size(); ++stage)
    for (const int32_t worker : workers_of[stage]) report.stages[stage].waiting_ns += idle_ns[worker];
  const double worker_time =
      static_cast<double>(step.wall_ns) * static_cast<double>(compiled.executable.numComputing());
  report.bubble = worker_time > 0 ? 1.0 - static_cast<double>(busy_ns) / worker_time : 0;
  return report;
}

namespace {

/// Last end of the forward segments, by micro-batch, replica fastest; as StepReport counts.
std::vector<int64_t> forwardEnds(const compile::ProgramOptions& options, const Compiled& compiled,
                                 const runtime::StepReport& step) {
  const exe::Executable& executable = compiled.executable;
  std::vector<int64_t> ends(
      static_cast<size_t>(options.device_iterations * options.gradient_accumulation * options.replicas), 0);
  for (const runtime::ActionTime& action : step.actions) {
    const exe::Segment& segment = executable.segments[action.segment];
    if (segment.direction != exe::Direction::kForward) continue;
    int64_t& end = ends.at(executable.globalMicroBatch(action.micro_batch, segment.replica));
    end = std::max(end, action.end_ns);
  }
  return ends;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

/// By result: the moment of the latest of the tensors, or of the earliest. Of several inputs for a result the last
/// counts.
std::vector<double> momentsOf(const std::vector<std::vector<double>>& tensors, size_t results, bool latest) {
  std::vector<double> moments;
  for (size_t i = 0; i < results; ++i) {
    const auto of = [&](const std::vector<double>& times) { return times.at((i + 1) * (times.size() / results) - 1); };
    moments.push_back(latest ? std::ranges::max(tensors | std::views::transform(of))
                             : std::ranges::min(tensors | std::views::transform(of)));
  }
  return moments;
}

}  // namespace

PerfCounters Session::perfCounters() const {
  const Compiled& compiled = impl_->require("perfCounters()");
  const compile::ProgramOptions& options = impl_->options;
  PerfCounters counters;
  std::vector<double> inputs, inputs_complete, outputs;
  if (!impl_->last_step.actions.empty() && options.synthetic_data == compile::SyntheticData::kOff) {
    const std::vector<int64_t> ends = forwardEnds(options, compiled, impl_->last_step);
    const auto stepOf = [&](int64_t micro_batch) {
      return impl_->handovers.at(micro_batch / compiled.executable.micro_batches);
    };
    for (size_t i = 0; i < ends.size(); ++i) {
      const Handover moved = stepOf(static_cast<int64_t>(i) / options.replicas);
      inputs.push_back(seconds(moved.asked_ns));
      inputs_complete.push_back(seconds(moved.bound_ns));
    }
    for (const Position& p : returnedMicroBatches(options, options.output_mode, options.output_period)) {
      const Handover moved = stepOf(p.micro_batch);
      const int64_t end = ends[compiled.executable.globalMicroBatch(p.micro_batch, static_cast<int32_t>(p.replica))];
      outputs.push_back(seconds(moved.start_ns + end - moved.before_ns));
    }
    if (options.output_mode == compile::OutputMode::kSum)
      outputs.erase(outputs.begin(), outputs.end() - options.replicas);
  }
  counters.input.assign(compiled.input_types.size(), inputs);
  counters.input_complete.assign(compiled.input_types.size(), inputs_complete);
  counters.output.assign(compiled.results.size(), outputs);
  const std::vector<double> complete(outputs.size(), seconds(impl_->results_ns));
  counters.output_complete.assign(compiled.results.size(), complete);
  return counters;
}

Latency Session::latency(Way way) const {
  const PerfCounters times = perfCounters();
  const size_t results = times.output.empty() ? 0 : times.output[0].size();
  if (results == 0 || times.input.empty() || times.input[0].empty()) return {};
  const auto given = [&] { return momentsOf(times.input_complete, results, /*latest=*/true); };
  const auto ready = [&](bool latest) { return momentsOf(times.output, results, latest); };
  const bool is_asked = way == Way::kHostToDevice || way == Way::kAll;
  std::vector<double> took = way == Way::kHostToDevice ? given()
                             : way == Way::kCompute    ? ready(/*latest=*/true)
                                                       : momentsOf(times.output_complete, results, /*latest=*/true);
  const std::vector<double> begins = is_asked               ? momentsOf(times.input, results, /*latest=*/false)
                                     : way == Way::kCompute ? given()
                                                            : ready(/*latest=*/false);
  std::ranges::transform(took, begins, took.begin(), std::minus());
  Latency latency{.least = std::ranges::min(took), .most = std::ranges::max(took)};
  for (const double each : took) latency.average += each / static_cast<double>(results);
  latency.average = std::clamp(latency.average, latency.least, latency.most);  // rounding may move it outside
  return latency;
}

int64_t Session::cycles() const {
  impl_->require("cycles()");
  return static_cast<int64_t>(static_cast<double>(impl_->last_step.wall_ns) * 1e-9 *
                              static_cast<double>(kCyclesPerSecond));
}

at::Tensor Session::anchor(const std::string& short_name) const {
  const Compiled& compiled = impl_->require("anchor()");
  const std::vector<compile::Anchor>& asked = impl_->options.anchors;
  const bool known =
      std::ranges::any_of(compiled.anchors,
                          [&](const compile::CompiledAnchor& anchor) { return anchor.name == short_name; }) ||
      std::ranges::any_of(asked, [&](const compile::Anchor& anchor) {
        return anchor.short_name == short_name && anchor.long_name == compile::kFinalLossScale;
      });
  ABELE_REQUIRE(
      known, E0708,
      {.what = cat("no tensor is anchored as ", short_name),
       .remedy = cat(inLanguage("options"), ".anchorTensor(short_name, long_name) before the model is wrapped")});
  auto found = impl_->anchored.find(short_name);
  ABELE_REQUIRE(
      found != impl_->anchored.end(), E0705,
      {.what = cat("anchor ", short_name, " has no value before the first call"), .remedy = "call the model"});
  ABELE_REQUIRE(found->second.defined(), E0705,
                {.what = cat("the value of anchor ", short_name, " is in another process"),
                 .at = cat("process ", impl_->options.processes.index, " of ", impl_->options.processes.count),
                 .found = "outputRank(\"first\"), (\"last\") or (\"owner\")",
                 .remedy = "read it in the process that gets the results, or set outputRank(\"all\")"});
  return found->second;
}

}  // namespace abele::session
