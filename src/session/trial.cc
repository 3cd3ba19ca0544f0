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

/// Makes a call of the model as Session::run does. Returns: its time.
int64_t callNs(Compiled& compiled, const compile::ProgramOptions& options, const std::vector<at::Tensor>& inputs,
               const compile::Poll& poll) {
  const Clock::time_point start = Clock::now();
  Results results = allocateResults(options, compiled);
  const int64_t steps = compile::stepsPerCall(options);
  for (int64_t step = 0; step < steps; ++step) {
    compiled.backend->bindInputs(partOf(inputs, step, steps));
    compiled.backend->bindOutputs(partOf(results, step, steps));
    compiled.runtime->run(poll);
    adaptLossScale(compiled, options);
  }
  finishResults(options, compiled, results);
  return nsSince(start);
}

}  // namespace

compile::PlacementTrial timeTrial(const compile::Program& program, compile::MadeProgram made,
                                  const compile::ProgramOptions& options, const std::vector<at::Tensor>& inputs,
                                  int64_t micro_batches, memory::ReusedPages& pages) {
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
  callNs(*compiled, apart, bound, program.poll);  // gets pages, and kernels tune themselves
  std::vector<int64_t> times;
  const Clock::time_point start = Clock::now();
  while (nsSince(start) < (times.size() < kFewestSteps ? kMostNs : kFewestNs) || times.empty())
    times.push_back(callNs(*compiled, apart, bound, program.poll));
  const size_t middle = (times.size() - 1) / 2;  // the shorter one of two
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(middle));
  const int threads = threadsPerDevice(apart, compiled->executable);
  const memory::IntoReusedPages reuse(pages);
  compiled.reset();
  return {.threads = threads, .step_ns = times[middle]};
}

}  // namespace abele::session
