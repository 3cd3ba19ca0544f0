#include <algorithm>
#include <chrono>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "compile/inputs.h"
#include "memory/reused_pages.h"
#include "session/impl.h"

namespace abele::session {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kFewestNs = 500'000'000, kMostNs = 1'000'000'000;
constexpr size_t kFewestSteps = 3;

int64_t nsSince(Clock::time_point start) { return std::chrono::nanoseconds(Clock::now() - start).count(); }

/// Returns the time that the busiest device, or link, worked on micro-batches in a step.
int64_t busiestNs(const Compiled& compiled, const runtime::StepReport& step) {
  std::vector<int64_t> worked(compiled.executable.workers.size(), 0);
  for (const runtime::ActionTime& action : step.actions)
    if (compiled.executable.segments[static_cast<size_t>(action.segment)].direction != exe::Direction::kUpdate)
      worked[static_cast<size_t>(action.worker)] += action.end_ns - action.begin_ns;
  return std::ranges::max(worked);
}

/// Makes a call of the model as Session::run does, and times it.
compile::TimedCall timeCall(Compiled& compiled, const compile::ProgramOptions& options,
                            const std::vector<at::Tensor>& inputs, const compile::Poll& poll) {
  compile::TimedCall call;
  const Clock::time_point start = Clock::now();
  Results results = allocateResults(options, compiled);
  const int64_t steps = compile::stepsPerCall(options);
  for (int64_t step = 0; step < steps; ++step) {
    compiled.backend->bindInputs(partOf(inputs, step, steps));
    compiled.backend->bindOutputs(partOf(results, step, steps));
    const runtime::StepReport& report = compiled.runtime->run(poll);
    call.micro_batch_ns += busiestNs(compiled, report);
    adaptLossScale(compiled, options);
  }
  finishResults(options, compiled, results);
  call.call_ns = nsSince(start);
  call.micro_batch_ns /= compile::microBatchesInWork(options) * (options.training ? options.device_iterations : 1);
  return call;
}

}  // namespace

compile::TimedCall timeTrial(const compile::Program& program, compile::MadeProgram made,
                             const compile::ProgramOptions& options, const std::vector<at::Tensor>& inputs,
                             int64_t micro_batches, bool again, memory::ReusedPages& pages) {
  const at::NoGradGuard no_grad;
  compile::ProgramOptions apart = options;
  apart.share_weights = false;
  auto compiled = std::make_unique<Compiled>();
  static_cast<compile::MadeProgram&>(*compiled) = std::move(made);
  // Clones the streams, so that the program's own do not advance.
  for (capture::OwnStream& stream : compiled->own_streams) stream.generator = stream.generator.clone();
  compiled->model = program.model;
  compiled->meta = program.meta;
  pages.fetchMissing();  // before the first call, which may be the only one
  {
    const memory::IntoReusedPages reuse(pages);
    load(*compiled, apart, compile::makeGenerator(apart));
  }
  pages.drop();  // the trial before took more
  const bool has_contents = std::ranges::none_of(inputs, [](const at::Tensor& input) { return input.is_meta(); });
  const bool is_synthetic = options.synthetic_data != compile::SyntheticData::kOff;
  const std::vector<at::Tensor> bound = compile::firstMicroBatches(
      has_contents && !is_synthetic
          ? inputs
          : syntheticLike(compiled->input_types,
                          is_synthetic ? options.synthetic_data : compile::SyntheticData::kNormal),
      compile::inputMicroBatches(options), micro_batches);
  if (!again) timeCall(*compiled, apart, bound, program.poll);
  std::vector<compile::TimedCall> calls;
  const Clock::time_point start = Clock::now();
  while (nsSince(start) < (calls.size() < kFewestSteps ? kMostNs : kFewestNs) || calls.empty())
    calls.push_back(timeCall(*compiled, apart, bound, program.poll));
  const size_t middle = (calls.size() - 1) / 2;  // the shorter one of two
  std::ranges::nth_element(calls, calls.begin() + static_cast<std::ptrdiff_t>(middle), {},
                           &compile::TimedCall::call_ns);
  calls[middle].threads = threadsPerDevice(apart, compiled->executable);
  const memory::IntoReusedPages reuse(pages);
  compiled.reset();
  return calls[middle];
}

}  // namespace abele::session
