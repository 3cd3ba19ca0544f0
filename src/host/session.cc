// Session: one compilation, and the calls that run it.
#include "host/session.h"

#include <chrono>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/log.h"
#include "exe/build/build.h"
#include "host/session_impl.h"
#include "ir/text.h"
#include "passes/stage_count.h"
#include "runtime/device/cpu/steering_allocator.h"

namespace abele::host {
namespace {

using Clock = std::chrono::steady_clock;
double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The stream that micro-batch 0 of the first step starts from. Never the default generator itself.
at::Generator makeGenerator(const SessionOptions& options) {
  if (options.has_seed) return at::detail::createCPUGenerator(options.seed);
  return at::detail::getDefaultCPUGenerator().clone();
}

plan::PlanOptions planOptions(const SessionOptions& options) {
  plan::PlanOptions p;
  if (options.strategy == Strategy::kSharded)
    p.schedule = plan::ScheduleKind::kSharded;
  else
    p.schedule = options.training ? options.schedule : plan::ScheduleKind::kForward;
  p.device_iterations = options.device_iterations;
  p.accumulation = options.gradient_accumulation;
  p.num_devices = options.num_devices;
  return p;
}

capture::Recording record(const Session::Program& program, const SessionOptions& options,
                          const std::vector<at::Tensor>& inputs, at::Generator& generator) {
  capture::Request request;
  request.forward = program.forward;
  request.arguments = firstMicroBatch(inputs, options.device_iterations * options.gradient_accumulation);
  request.model = program.model;
  request.training = options.training;
  request.loss_gradient = options.mean_reduction ? 1.0 / static_cast<double>(options.gradient_accumulation) : 1.0;
  request.generator = &generator;
  request.source_location = program.source_location;
  request.mode_object = program.mode_object;
  return capture::capture(request);
}

/// Passes, plan and executable of a recording.
void lower(Compiled& compiled, const SessionOptions& options) {
  compiled.graph = compiled.recording.graph;
  addWrittenArguments(compiled.recording, compiled.graph);
  passes::PassContext context{.stages = options.stages, .optimizer = compiled.optimizer.rules};
  context.stages.ordered = options.strategy == Strategy::kPipelined;
  passes::PipelineOptions pipeline;
  if (plan::splitsBackward(planOptions(options).schedule)) {
    pipeline.passes = passes::defaultPipeline(options.training);
    // Last: it looks at who waits for each gradient, and the optimizer is one of them.
    pipeline.passes.push_back("split-weight-gradient");
  }
  passes::runPipeline(compiled.graph, context, pipeline);
  checkPipelineMinimum(options, passes::forwardStageCount(compiled.graph));
  compiled.plan = plan::makePlan(compiled.graph, planOptions(options));
  compiled.executable = exe::build(compiled.graph, compiled.plan);
}

}  // namespace

Session::Session(SessionOptions options) : impl_(std::make_unique<Impl>()) {
  checkOptions(options);
  impl_->options = std::move(options);
}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

Compiled& Session::Impl::require(const char* call) const {
  ABELE_REQUIRE(
      compiled, E0705,
      {.what = cat(call, " needs a compiled model"), .remedy = "call the model once, or compile() it, first"});
  return *compiled;
}

void Session::compile(const Program& program, const std::vector<at::Tensor>& inputs, const OptimizerSpec& optimizer) {
  log::CallScope scope("Session::compile");
  const Clock::time_point start = Clock::now();
  const SessionOptions& options = impl_->options;
  // Shares of the work as large models have them.
  auto reached = [&program](int percent) {
    if (program.progress) program.progress(percent, 100);
  };
  reached(0);
  checkBatchSplit(options, inputs);
  auto next = std::make_unique<Compiled>();
  next->model = program.model;
  next->optimizer = optimizer;
  for (const at::Tensor& input : inputs) next->input_types.push_back(typeOf(input));
  at::Generator generator = makeGenerator(options);
  next->recording = record(program, options, inputs, generator);
  const double capture_s = secondsSince(start);
  reached(40);
  lower(*next, options);
  showCompiled(*next);
  reached(70);
  {
    at::NoGradGuard no_grad;
    load(*next, options, generator);
  }
  for (const at::Tensor& result : next->recording.results) next->result_types.push_back(typeOf(result));
  next->recording.results.clear();
  next->recording.constants.clear();
  impl_->compiled = std::move(next);
  impl_->captured_text.clear();
  impl_->last_step = {};
  impl_->capture_s = capture_s;
  impl_->compile_s = secondsSince(start) - capture_s;
  reached(100);
}

bool Session::isCompiled() const { return impl_->compiled != nullptr; }

std::vector<at::Tensor> Session::run(const std::vector<at::Tensor>& inputs, const std::function<bool()>& poll) {
  log::CallScope scope("Session::run");
  at::NoGradGuard no_grad;
  Compiled& compiled = impl_->require("run()");
  checkSameInputs(compiled.input_types, inputs);
  compiled.backend->bindInputs(bindable(inputs));
  Results results = allocateResults(impl_->options, compiled);
  compiled.backend->bindOutputs(results.bound);
  const int64_t allocations = runtime::cpuAllocatorMisses();
  impl_->last_step = compiled.runtime->run(poll);
  impl_->last_step_allocations = runtime::cpuAllocatorMisses() - allocations;
  addUp(results);
  writeBack(compiled, results, inputs);
  return std::move(results.returned);
}

const ir::Graph& Session::graph() const { return impl_->require("graph()").graph; }
const plan::Plan& Session::plan() const { return impl_->require("plan()").plan; }
const exe::Executable& Session::executable() const { return impl_->require("executable()").executable; }

const std::string& Session::capturedText() const {
  const Compiled& compiled = impl_->require("capturedText()");
  if (impl_->captured_text.empty()) impl_->captured_text = ir::print(compiled.recording.graph);
  return impl_->captured_text;
}

}  // namespace abele::host
