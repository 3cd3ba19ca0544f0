// Session: one compilation, and the calls that run it.
#include "session/session.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/log.h"
#include "collective/peers.h"
#include "compile/compiler.h"
#include "compile/inputs.h"
#include "compile/tensor_names.h"
#include "compile/tensors.h"
#include "memory/offload.h"
#include "memory/reused_pages.h"
#include "processes/links.h"
#include "processes/processes.h"
#include "session/impl.h"
#include "session/inputs.h"

namespace abele::session {
namespace {

using Clock = std::chrono::steady_clock;
double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Some operators on integers ask for torch's default type, which is the process's: until the end, it is this one.
AtEnd useDefaultType(caffe2::TypeMeta type) {
  const caffe2::TypeMeta before = c10::get_default_dtype();
  if (type != before) c10::set_default_dtype(type);
  return AtEnd([type, before] {
    if (type != before) c10::set_default_dtype(before);
  });
}

/// Appends a step to the report. micro_batch: the number of its first micro-batch in the call. Its times follow those
/// that the report has already.
void append(const runtime::StepReport& step, int64_t micro_batch, runtime::StepReport& report) {
  for (runtime::ActionTime action : step.actions) {
    action.micro_batch += static_cast<int32_t>(micro_batch);
    action.begin_ns += report.wall_ns;
    action.end_ns += report.wall_ns;
    report.actions.push_back(action);
  }
  for (runtime::PagingTime paging : step.paging) {
    paging.begin_ns += report.wall_ns;
    paging.end_ns += report.wall_ns;
    report.paging.push_back(paging);
  }
  report.wall_ns += step.wall_ns;
}

/// The pages that a capture works in and the devices take over. Null: the capture works in a device's memory. Models on
/// the meta device, and limits of memory, are for programs whose memory is scarce: pages return to the system at once,
/// which malloc's heap does not promise.
std::unique_ptr<memory::ReusedPages> pagesFor(const compile::ProgramOptions& options,
                                              const compile::MetaTensors& meta) {
  if (!compile::captureDevice(options).is_cpu()) return nullptr;
  return std::make_unique<memory::ReusedPages>(!meta.any && options.off_chip_memory_limit < 0);
}

/// Devices have a copy of each argument. In eager PyTorch a write into the model's tensor changes an argument that
/// shares its memory, and a write into an argument changes the model's tensor.
void requireApart(const Compiled& compiled, const std::vector<at::Tensor>& inputs) {
  const auto isApart = [&](size_t external, size_t argument) {
    const at::Tensor* tensor = compiled.model_of[external];
    return tensor == nullptr || !compile::shareMemory(*tensor, inputs.at(argument));
  };
  constexpr const char* kRemedy = "clone() the argument before the call";
  const auto nameOf = [&](size_t external) { return compiled.executable.externals[external].name; };
  for (const size_t i : compiled.written_by_forward)
    for (size_t j = 0; j < inputs.size(); ++j)
      ABELE_REQUIRE(
          isApart(i, j), E0708,
          {.what = cat("forward writes into ",
                       compiled.executable.externals[i].kind == exe::ExternalKind::kBuffer ? "buffer " : "parameter ",
                       nameOf(i), ", which shares memory with tensor argument ", j),
           .expected = "separate memory for the argument",
           .remedy = kRemedy});
  for (const compile::WrittenArgument& written : compiled.written)
    for (size_t i = 0; i < compiled.model_of.size(); ++i)
      ABELE_REQUIRE(isApart(i, static_cast<size_t>(written.argument)), E0708,
                    {.what = cat("forward writes into tensor argument ", written.argument,
                                 ", which shares memory with ", nameOf(i)),
                     .expected = "separate memory for the argument",
                     .remedy = kRemedy});
}

}  // namespace

std::string keyOf(const Compiled& compiled) {
  return cat(compiled.key, compiled.has_own_weights_alone ? " of a model on the meta device" : "");
}

Session::Session(compile::ProgramOptions options) : impl_(std::make_unique<Impl>()) {
  compile::checkOptions(options);
  impl_->options = std::move(options);
  if (!impl_->options.weights_owner) impl_->options.weights_owner = impl_.get();
}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

Compiled& Session::Impl::require(const char* call) const {
  requireIdle(call);
  ABELE_REQUIRE(
      compiled, E0705,
      {.what = cat(call, " needs a compiled model"), .remedy = "call the model once, or compile() it, first"});
  ABELE_REQUIRE(compiled->home.isHere(), E0607,
                {.what = cat(call, " of a model that was compiled before this process was forked off"),
                 .found = "devices whose threads are in the parent process",
                 .expected = "a model that this process compiled",
                 .remedy = inLanguage("destroy() the model here and call it again; copyWeightsToHost() before the fork "
                                      "to have its weights here")});
  return *compiled;
}

void Session::Impl::requireIdle(const char* call) const {
  ABELE_REQUIRE(caller == nullptr || caller != currentCaller(), E0608,
                {.what = cat(call, " from within a step or compilation of the same model"),
                 .found = "a hook, a host function or forward that calls it",
                 .expected = "one call at a time",
                 .remedy = "call it when the model has returned, or use another model inside"});
}

AtEnd Session::Impl::enter(const char* call) {
  requireIdle(call);
  caller = currentCaller();
  return AtEnd([this] { caller = nullptr; });
}

void Session::Impl::drop() {
  if (compiled && !compiled->home.isHere()) static_cast<void>(compiled.release());
  compiled.reset();
}

void Session::compile(const compile::Program& program, const std::vector<at::Tensor>& inputs,
                      const compile::OptimizerSpec& optimizer) {
  log::CallScope scope("Session::compile");
  // Tensors that are made here outlive the caller's inference mode, and capture reads versions of tensors.
  const c10::InferenceMode not_inference(false);
  const Clock::time_point start = Clock::now();
  const AtEnd busy = impl_->enter("compile()");
  compile::ProgramOptions options = impl_->options;
  // Shares of the work as large models have them.
  const auto reached = [&program](int percent) {
    if (program.progress) program.progress(percent, 100);
  };
  reached(0);
  compile::requireMemory(inputs);
  compile::checkBatchSplit(options, inputs);
  compile::requireBuffers(options, program.model);
  auto next = std::make_unique<Compiled>();
  next->model = program.model;
  next->optimizer = optimizer;
  next->groupings = options.groupings;
  next->watch = impl_->watch;
  next->meta = program.meta;
  // Such a process gives the program the tensors that its devices hold, so it holds whole ones.
  next->has_own_weights_alone = options.stages.holds_whole = program.meta.any && options.processes.stages > 1;
  at::Generator generator = compile::makeGenerator(options);
  std::unique_ptr<memory::ReusedPages> pages = pagesFor(options, program.meta);
  const auto loadProgram = [&] {
    {
      std::optional<memory::IntoReusedPages> reuse;
      if (pages) reuse.emplace(*pages);
      session::load(*next, options, generator);
    }
    pages.reset();
  };
  const auto loadFound = [&] {
    try {
      loadProgram();
    } catch (...) {
      next->runtime.reset();
      next->shared.reset();
      next->backend.reset();
      throw;
    }
  };
  const compile::CompileRequest request{.program = program,
                                        .inputs = inputs,
                                        .options = options,
                                        .keeps_origins = next->watch != nullptr,
                                        .load = loadFound};
  next->peers = processes::joinPeers(options);
  if (next->peers)
    impl_->options.processes.cores = options.processes.cores =
        processes::leastCores(*next->peers, compile::coresOfReplica(options), program.poll);
  impl_->options.costs = options.costs = processes::costsWithLinks(options, next->peers, program.poll);
  const Clock::time_point capture_start = Clock::now();
  capture::Recording recording = [&] {
    std::optional<memory::FromReusedPages> reuse;
    if (pages) reuse.emplace(*pages);
    return compile::captureProgram(request, generator, *next);
  }();
  const double capture_s = secondsSince(capture_start);
  options = compile::measureDevices(
      request, recording, *next,
      [&](compile::MadeProgram made, const compile::ProgramOptions& with, bool again) {
        return timeTrial(program, std::move(made), with, inputs, compile::inputMicroBatches(options), again, *pages);
      },
      next->placement);
  if (!next->placement.trials.empty()) next->phases.end("measure devices");
  const bool from_cache = compile::compileRecording(request, std::move(recording), *next);
  if (next->peers) processes::requireSameProgram(*next->peers, keyOf(*next), options.output_rank, program.poll);
  showCompiled(*next);
  reached(70);
  if (!next->runtime) {
    at::NoGradGuard no_grad;
    loadProgram();
  }
  connectLinks(*next, options, program.poll);
  if (!options.initializers_path.empty()) saveInitializers(program.model, options.initializers_path);
  for (const capture::ModelTensor& m : program.model) memory::releaseIfOffloaded(*m.tensor);
  next->phases.end("load");
  impl_->adopt(std::move(next));
  impl_->from_cache = from_cache;
  impl_->capture_s = capture_s;
  impl_->compile_s = secondsSince(start) - capture_s;
  reached(100);
}

void Session::Impl::adopt(std::unique_ptr<Compiled> next) {
  if (options.synthetic_data != compile::SyntheticData::kOff)
    synthetic = syntheticLike(next->input_types, options.synthetic_data);
  drop();
  compiled = std::move(next);
  captured_text.clear();
  last_step = {};
  recent.clear();
  workspace_bytes = sent_bytes = 0;
  anchored.clear();
}

bool Session::isCompiled() const { return impl_->compiled != nullptr; }
bool Session::isOfParent() const { return impl_->compiled && !impl_->compiled->home.isHere(); }

std::vector<at::Tensor> Session::run(const std::vector<at::Tensor>& given, const compile::Poll& poll) {
  log::CallScope scope("Session::run");
  const Clock::time_point start = Clock::now();
  at::NoGradGuard no_grad;
  Compiled& compiled = impl_->require("run()");
  const AtEnd busy = impl_->enter("run()");
  const AtEnd default_type = useDefaultType(compiled.default_type);
  compile::requireMemory(given);
  checkSameInputs(compiled.input_types, given);
  const bool is_synthetic = impl_->options.synthetic_data != compile::SyntheticData::kOff;
  for (size_t i = 0; i < given.size() && !is_synthetic; ++i)
    ABELE_REQUIRE(!given[i].is_meta(), E0708,
                  {.what = cat("input ", i, " is on the meta device, and has no contents"),
                   .found = compile::typeOf(given[i]).str(),
                   .expected = "a tensor with contents",
                   .remedy = "pass such tensors only to compile()"});
  const auto sinceBegin = [&] { return std::chrono::nanoseconds(Clock::now() - start).count(); };
  warnOfEdits(compiled);
  const std::vector<at::Tensor>& inputs = is_synthetic ? impl_->synthetic : given;
  std::vector<at::Tensor> bound = compile::bindable(inputs);
  followModel(compiled, /*requires_fit=*/true);
  requireApart(compiled, bound);
  if (compiled.shared) {
    compiled.shared->follow(compiled.executable.externals);
    for (at::Tensor& input : bound)
      if (compiled.shared->isChanged(input)) input = input.clone();  // it is what it was when the call began
  }
  const int64_t sent_before = compiled.peers ? compiled.peers->sentBytes() : 0;
  Results results = allocateResults(impl_->options, compiled);
  const device::Allocations before = compiled.backend->allocations();
  const int64_t steps = compile::stepsPerCall(impl_->options);
  std::vector<double> loss_scales;
  impl_->last_step = {};
  impl_->handovers.clear();
  impl_->call_begin = std::chrono::nanoseconds(start.time_since_epoch()).count();
  for (int64_t step = 0; step < steps; ++step) {
    loss_scales.push_back(finalLossScale(compiled));
    Handover& moved = impl_->handovers.emplace_back();
    moved.asked_ns = step == 0 ? 0 : sinceBegin();
    moved.before_ns = impl_->last_step.wall_ns;
    compiled.backend->bindInputs(partOf(bound, step, steps));
    moved.bound_ns = sinceBegin();
    compiled.backend->bindOutputs(partOf(results, step, steps));
    moved.start_ns = sinceBegin();
    const runtime::StepReport& done = compiled.runtime->run(poll);
    moved.begin = done.begin;
    append(done, step * compiled.executable.micro_batches, impl_->last_step);
    adaptLossScale(compiled, impl_->options);
  }
  if (compiled.shared) compiled.shared->noteUpdates(compiled.model_of);
  const device::Allocations after = compiled.backend->allocations();
  impl_->last_step_allocations = after.count - before.count;
  impl_->workspace_bytes += after.bytes - before.bytes;
  finishResults(impl_->options, compiled, results);
  writeBack(compiled, results, inputs);
  if (compiled.peers) impl_->sent_bytes = compiled.peers->sentBytes() - sent_before;
  impl_->results_ns = sinceBegin();
  for (size_t i = 0; i < compiled.anchors.size(); ++i) impl_->anchored[compiled.anchors[i].name] = results.anchored[i];
  for (const compile::Anchor& anchor : impl_->options.anchors)
    if (impl_->options.training && anchor.long_name == compile::kFinalLossScale)
      impl_->anchored[anchor.short_name] = lossScaleAnchor(impl_->options, anchor, loss_scales);
  impl_->note(std::chrono::nanoseconds(Clock::now() - start).count());
  return std::move(results.returned);
}

}  // namespace abele::session
