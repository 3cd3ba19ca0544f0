// Session: one compilation, and the calls that run it.
#include "host/session.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include <malloc.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/log.h"
#include "host/default_schedule.h"
#include "host/executable_cache.h"
#include "host/lowering.h"
#include "host/placement.h"
#include "host/session_impl.h"
#include "host/tensor_names.h"
#include "passes/stage_count.h"
#include "runtime/device/cpu/offload.h"
#include "runtime/device/cpu/paged_memory.h"
#include "runtime/device/cpu/steering_allocator.h"
#include "runtime/kernels/fixed_shapes.h"
#include "runtime/kernels/grad_modes.h"

namespace abele::host {
namespace {

using Clock = std::chrono::steady_clock;
double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// From so much memory of the devices on, compilation returns what capture no longer needs to the system first.
constexpr int64_t kTrimmedBytes = int64_t{64} << 20;

// Of what a capture works on, beside the limit of the host's memory for off-chip tensors: the operands of a few
// operators of a large model.
constexpr int64_t kLeastPagedBytes = int64_t{64} << 20;

/// A capture whose tensors, and the model's own where they are offloaded, leave the process's memory when it has used
/// so many bytes: where the user limits the host's memory for tensors off chip.
class PagedCapture {
 public:
  PagedCapture(const SessionOptions& options, const std::vector<capture::ModelTensor>& model)
      : memory_(options.off_chip_folder),
        scope_(memory_),
        model_(model),
        limit_bytes_(std::max(kLeastPagedBytes, options.off_chip_memory_limit)) {}

  void touched(int64_t bytes) {
    touched_bytes_ += bytes;
    if (touched_bytes_ < limit_bytes_) return;
    touched_bytes_ = 0;
    memory_.release();
    for (const capture::ModelTensor& m : model_) runtime::releaseIfOffloaded(*m.tensor);
  }

 private:
  runtime::PagedMemory memory_;
  runtime::PagedScope scope_;
  const std::vector<capture::ModelTensor>& model_;
  int64_t limit_bytes_, touched_bytes_ = 0;
};

capture::Recording record(const Session::Program& program, const SessionOptions& options,
                          const std::vector<at::Tensor>& inputs, at::Generator& generator) {
  capture::Request request = requestOf(program, options);
  request.arguments = firstMicroBatch(inputs, inputMicroBatches(options));
  request.generator = &generator;
  std::optional<PagedCapture> paged;
  if (options.off_chip_memory_limit >= 0) {
    paged.emplace(options, program.model);
    request.touched = [&](int64_t bytes) { paged->touched(bytes); };
  }
  const OneValueEach shapes(program.model, options.groupings, options.replicas);
  return capture::capture(request);
}

void warnOfWrittenConstants(const capture::Recording& recording) {
  for (const std::string& name : recording.written_constants)
    log::warn(
        "forward writes into ", name,
        ", which is neither a parameter nor a buffer: each call starts from what it held at compile time, and the "
        "tensor itself does not change; to keep what is written, make it a buffer (",
        inLanguage("self.register_buffer", "register_buffer"), ")");
}

/// Notes anchors and names, and adds them to the outputs of the captured graph.
Captured addOutputs(Compiled& compiled, const capture::Recording& recording, const SessionOptions& options) {
  Captured captured{recording.graph, recording.kept, compiled.optimizer.rules};
  for (size_t i = 0; i < compiled.written.size(); ++i)
    captured.graph.outputs.push_back(
        {recording.written_arguments[i].second, ir::OutputKind::kResult, compiled.written[i].target});
  const TensorNames names(recording, compiled.optimizer);
  const auto targets = static_cast<int32_t>(compiled.results.size() + compiled.written.size());
  compiled.anchors = names.addAnchors(options, targets, captured.graph);
  compiled.tensor_names = names.all();
  return captured;
}

/// What a compilation was asked for, for those that must capture again.
struct Asked {
  const Session::Program& program;
  const std::vector<at::Tensor>& inputs;
};

/// The same program with other numbers of micro-batches.
Captured captureAgain(const Asked& asked, const SessionOptions& options, const OptimizerSpec& optimizer) {
  at::Generator generator = makeGenerator(options);
  const capture::Recording recording = record(asked.program, options, asked.inputs, generator);
  Compiled other;
  other.optimizer = optimizer;
  describe(other, recording, asked.inputs);
  return addOutputs(other, recording, options);
}

/// Resolves ScheduleRule::kFastest for stages that the user placed.
void chooseSchedule(const Captured& captured, SessionOptions& options) {
  options.schedule_rule = ScheduleRule::kGiven;
  options.schedule = plan::ScheduleKind::k1F1B;
  const std::vector<ScheduleChoice> choices = compareSchedules(runPasses(captured, options), options);
  options.schedule = choices.front().schedule;
  for (const ScheduleChoice& choice : choices)
    log::info("schedule auto: ", plan::scheduleName(choice.schedule), " is predicted to take ", choice.step_ns,
              " ns and ", choice.peak_bytes, " bytes a device",
              &choice == &choices.front() ? ": taken"
              : choice.fits               ? ""
                                          : ": too large");
}

/// Passes, and the schedule where nobody chose one.
void runPassesAndChoose(Compiled& compiled, const Captured& captured, SessionOptions& options) {
  if (!leavesSchedule(options)) {
    compiled.graph = runPasses(captured, options);
    return;
  }
  Lowered lowered = lowerByDefault(captured, options);
  options.schedule_rule = ScheduleRule::kGiven;
  options.schedule = lowered.choice.schedule;
  options.most_held = std::move(lowered.choice.most_held);
  compiled.graph = std::move(lowered.graph);
  compiled.schedule_reason = std::move(lowered.choice.reason);
  log::info("schedule ", plan::scheduleName(options.schedule), ": ", compiled.schedule_reason);
}

/// Passes, plan and executable of a recording.
void lower(Compiled& compiled, const capture::Recording& recording, SessionOptions options, const Asked& asked) {
  const Captured captured = addOutputs(compiled, recording, options);
  if (splitsByItself(options)) placeBySplit(captured.graph, compiled.optimizer, options);
  if (choosesSchedule(options)) chooseSchedule(captured, options);
  runPassesAndChoose(compiled, captured, options);
  TensorNames::addUpdated(compiled.anchors, compiled.graph);
  compiled.phases.end("passes");
  compiled.plan = plan::makePlan(compiled.graph, planOptions(options));
  compiled.schedule = plan::scheduleName(compiled.plan.options.schedule);
  compiled.phases.end("plan");
  checkReplicaDevices(options, compiled.plan);
  std::vector<int> devices;
  for (const int32_t worker : compiled.plan.worker_of) devices.push_back(compiled.plan.device_of[worker]);
  if (asked.program.check_devices) asked.program.check_devices(devices);
  // After the devices: more micro-batches would not make a device exist. PopTorch's minimum is for stages that the user
  // placed.
  if (!splitsByItself(options)) checkPipelineMinimum(options, passes::forwardStageCount(compiled.graph));
  checkClipping(options, compiled.optimizer);
  compiled.executable =
      exe::build(compiled.graph, compiled.plan, replicationOf(options), compiled.watch ? &compiled.origins : nullptr);
  checkBuffers(options, compiled.executable, compiled.graph);
  compiled.phases.end("build");
  const int64_t rows =
      asked.inputs.empty() || asked.inputs[0].dim() == 0 ? 0 : asked.inputs[0].size(0) / inputMicroBatches(options);
  requireMemory(compiled.executable, compiled.graph, compiled.plan, captured, options, rows,
                [&](const SessionOptions& other) { return captureAgain(asked, other, compiled.optimizer); });
  describeStages(compiled);
  compiled.is_made_here = true;
  compiled.phases.end("memory check");
}

/// Of the stages of the first replica.
std::vector<int> firstDevices(const CompiledProgram& program) {
  std::vector<int> devices;
  for (const CompiledStage& stage : program.stages)
    if (stage.replica == 0) devices.push_back(stage.device);
  return devices;
}

/// Takes the cache's program and brings it to its devices. False: it does not serve; nothing of it is left then.
bool loadFound(CompiledProgram found, Compiled& compiled, const capture::Recording& recording,
               const SessionOptions& options, const at::Generator& generator, const ExecutableCache& cache) {
  at::NoGradGuard no_grad;
  try {
    takeExecutable(std::move(found), compiled, recording.graph);
    requireMemory(compiled.executable, options);
    host::load(compiled, options, generator);
    return true;
  } catch (const Error& error) {
    cache.warnOf(compiled.key, error);
  } catch (const std::exception& error) {  // of ATen
    cache.warnOf(compiled.key, UserError(ErrorCode::E0501, {.what = error.what()}));
  }
  compiled.runtime.reset();
  compiled.shared.reset();
  compiled.backend.reset();
  compiled.executable = {};
  compiled.anchors.clear();
  compiled.stages.clear();
  return false;
}

/// The same, or what the cache has of it, which is on its devices then. Returns: true when it was the cache.
bool lowerOrFind(Compiled& compiled, const capture::Recording& recording, const SessionOptions& options,
                 const at::Generator& generator, const Asked& asked) {
  const bool calls_host = std::any_of(recording.graph.nodes.begin(), recording.graph.nodes.end(),
                                      [](const ir::Node& node) { return node.op == "abele_op::host_call"; });
  compiled.key = cacheKey(recording.graph, options, compiled.optimizer, recording.kept);
  compiled.phases.end("key");
  if (options.cache_path.empty() || calls_host) {
    lower(compiled, recording, options, asked);
    return false;
  }
  const ExecutableCache cache(options.cache_path);
  std::optional<ExecutableCache::Lock> lock;
  if (options.cache_lock) lock.emplace(cache.lock(asked.program.poll));
  const std::string& key = compiled.key;
  std::optional<CompiledProgram> found = cache.find(key);
  if (found && loadFound(*std::move(found), compiled, recording, options, generator, cache)) {
    if (asked.program.check_devices) asked.program.check_devices(firstDevices(compiled));
    log::info("executable ", key, " found in ", options.cache_path);
    return true;
  }
  lower(compiled, recording, options, asked);
  cache.store(key, executableOnly(compiled));
  log::info("executable ", key, " stored in ", options.cache_path);
  return false;
}

/// Adds a step to those before it: micro_batch is the number of its first one among all, times go on where they ended.
void append(const runtime::StepReport& step, int64_t micro_batch, runtime::StepReport& report) {
  for (runtime::ActionTime action : step.actions) {
    action.micro_batch += static_cast<int32_t>(micro_batch);
    action.begin_ns += report.wall_ns;
    action.end_ns += report.wall_ns;
    report.actions.push_back(action);
  }
  report.wall_ns += step.wall_ns;
}

}  // namespace

void requireMemory(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) return;
  const auto needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                       static_cast<size_t>(tensor.storage_offset()));
  ABELE_REQUIRE(tensor.storage().nbytes() >= needed, E0708,
                {.what = cat("the memory of ", name, " is smaller than its sizes"),
                 .at = name,
                 .found = cat(tensor.storage().nbytes(), " bytes"),
                 .expected = cat(needed, " bytes for ", typeOf(tensor).str()),
                 .remedy = "keep the storage of the tensor: do not resize or free it"});
}

void requireMemory(const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) requireMemory(inputs[i], cat("input ", i));
}

capture::Request requestOf(const Session::Program& program, const SessionOptions& options) {
  capture::Request request;
  request.forward = program.forward;
  request.model = program.model;
  request.training = options.training;
  const int64_t gradients = options.gradient_accumulation * totalReplicas(options);
  request.loss_gradient = options.mean_reduction ? 1.0 / static_cast<double>(gradients) : 1.0;
  request.source_location = program.source_location;
  request.attributes_nodes = splitsByItself(options);
  request.mode_object = program.mode_object;
  request.checks_comparisons = program.checks_comparisons;
  request.trusts_reads = options.trusts_reads;
  request.name_of = program.name_of;
  runtime::registerFixedShapeOperators();
  runtime::registerGradModeOperators();
  return request;
}

at::Generator makeGenerator(const SessionOptions& options) {
  if (options.has_seed) return at::detail::createCPUGenerator(options.seed);
  return at::detail::getDefaultCPUGenerator().clone();
}

Session::Session(SessionOptions options) : impl_(std::make_unique<Impl>()) {
  checkOptions(options);
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
                 .remedy = inLanguage("start the process with the start method \"spawn\", or destroy() the model here "
                                      "and call it again; copyWeightsToHost() before the fork to have its weights here",
                                      "destroy() the model here and call it again; copyWeightsToHost() before the fork "
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

Session::Impl::Busy::Busy(Impl& session, const char* call) : session_(session) {
  session.requireIdle(call);
  session.caller = currentCaller();
}

void Session::Impl::drop() {
  if (compiled && !compiled->home.isHere()) static_cast<void>(compiled.release());
  compiled.reset();
}

void Session::compile(const Program& program, const std::vector<at::Tensor>& inputs, const OptimizerSpec& optimizer) {
  log::CallScope scope("Session::compile");
  // What is made here outlives the caller's inference mode, and capture looks at versions of tensors.
  const c10::InferenceMode not_inference(false);
  const Clock::time_point start = Clock::now();
  const Impl::Busy busy(*impl_, "compile()");
  const SessionOptions& options = impl_->options;
  // Shares of the work as large models have them.
  auto reached = [&program](int percent) {
    if (program.progress) program.progress(percent, 100);
  };
  reached(0);
  requireMemory(inputs);
  checkBatchSplit(options, inputs);
  requireBuffers(options, program.model);
  auto next = std::make_unique<Compiled>();
  next->model = program.model;
  next->optimizer = optimizer;
  next->groupings = options.groupings;
  next->watch = impl_->watch;
  next->peers = joinPeers(options);
  at::Generator generator = makeGenerator(options);
  double capture_s = 0;
  bool from_cache = false;
  {
    capture::Recording recording = record(program, options, inputs, generator);
    capture_s = secondsSince(start);
    warnOfWrittenConstants(recording);
    reached(40);
    next->phases.end("capture");
    describe(*next, recording, inputs);
    from_cache = lowerOrFind(*next, recording, options, generator, {program, inputs});
    next->captured = std::move(recording.graph);
  }
  if (next->peers) requireSameProgram(*next->peers, next->key, program.poll);
  showCompiled(*next);
  reached(70);
  if (!next->runtime) {
    // Capture ran the whole model. The C library keeps that memory for other blocks, and the devices' is mapped anew.
    int64_t device_bytes = exe::offChipBytes(next->executable);
    for (size_t w = 0; w < next->executable.workers.size(); ++w)
      device_bytes += exe::residentBytes(next->executable, static_cast<int32_t>(w));
    if (device_bytes >= kTrimmedBytes) malloc_trim(0);
    at::NoGradGuard no_grad;
    host::load(*next, options, generator);
  }
  if (!options.initializers_path.empty()) saveInitializers(program.model, options.initializers_path);
  for (const capture::ModelTensor& m : program.model) runtime::releaseIfOffloaded(*m.tensor);
  next->phases.end("load");
  impl_->adopt(std::move(next));
  impl_->from_cache = from_cache;
  impl_->capture_s = capture_s;
  impl_->compile_s = secondsSince(start) - capture_s;
  reached(100);
}

void Session::Impl::adopt(std::unique_ptr<Compiled> next) {
  if (options.synthetic_data) synthetic = syntheticLike(next->input_types);
  drop();
  compiled = std::move(next);
  captured_text.clear();
  last_step = {};
  recent.clear();
  workspace_bytes = 0;
  anchored.clear();
}

bool Session::isCompiled() const { return impl_->compiled != nullptr; }
bool Session::isOfParent() const { return impl_->compiled && !impl_->compiled->home.isHere(); }

std::vector<at::Tensor> Session::run(const std::vector<at::Tensor>& given, const Poll& poll) {
  log::CallScope scope("Session::run");
  const Clock::time_point start = Clock::now();
  at::NoGradGuard no_grad;
  Compiled& compiled = impl_->require("run()");
  const Impl::Busy busy(*impl_, "run()");
  requireMemory(given);
  checkSameInputs(compiled.input_types, given);
  const auto sinceBegin = [&] { return std::chrono::nanoseconds(Clock::now() - start).count(); };
  warnOfEdits(compiled);
  const std::vector<at::Tensor>& inputs = impl_->options.synthetic_data ? impl_->synthetic : given;
  std::vector<at::Tensor> bound = bindable(inputs);
  if (compiled.shared) {
    compiled.shared->follow(compiled.executable.externals);
    for (at::Tensor& input : bound)
      if (compiled.shared->isChanged(input)) input = input.clone();  // it is what it was when the call began
  }
  Results results = allocateResults(impl_->options, compiled);
  const int64_t allocations = runtime::cpuAllocatorMisses(), heap_bytes = runtime::cpuAllocatorMissBytes();
  const int64_t steps = stepsPerCall(impl_->options);
  std::vector<double> loss_scales;
  impl_->last_step = {};
  impl_->handovers.clear();
  for (int64_t step = 0; step < steps; ++step) {
    loss_scales.push_back(finalLossScale(compiled));
    Handover& moved = impl_->handovers.emplace_back();
    moved.asked_ns = step == 0 ? 0 : sinceBegin();
    moved.before_ns = impl_->last_step.wall_ns;
    compiled.backend->bindInputs(partOf(bound, step, steps));
    moved.bound_ns = sinceBegin();
    compiled.backend->bindOutputs(partOf(results, step, steps));
    moved.start_ns = sinceBegin();
    append(compiled.runtime->run(poll), step * compiled.executable.micro_batches, impl_->last_step);
    adaptLossScale(compiled, impl_->options);
  }
  if (compiled.shared) compiled.shared->noteUpdates(compiled.model_of);
  impl_->last_step_allocations = runtime::cpuAllocatorMisses() - allocations;
  impl_->workspace_bytes += runtime::cpuAllocatorMissBytes() - heap_bytes;
  finishResults(impl_->options, compiled, results);
  writeBack(compiled, results, inputs);
  impl_->results_ns = sinceBegin();
  for (size_t i = 0; i < compiled.anchors.size(); ++i) impl_->anchored[compiled.anchors[i].name] = results.anchored[i];
  for (const Anchor& anchor : impl_->options.anchors)
    if (impl_->options.training && anchor.long_name == kFinalLossScale)
      impl_->anchored[anchor.short_name] = lossScaleAnchor(impl_->options, anchor, loss_scales);
  impl_->note(std::chrono::nanoseconds(Clock::now() - start).count());
  return std::move(results.returned);
}

}  // namespace abele::host
