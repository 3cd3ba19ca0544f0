#include "compile/compiler.h"

#include <algorithm>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/log.h"
#include "base/log_silence.h"
#include "capture/same_program.h"
#include "compile/executable_cache.h"
#include "compile/inputs.h"
#include "compile/lowering.h"
#include "compile/measured_placement.h"
#include "compile/meta_tensors.h"
#include "compile/placement.h"
#include "compile/replication.h"
#include "compile/shard_trials.h"
#include "compile/tensor_names.h"
#include "compile/tensors.h"
#include "kernels/operator_forms.h"
#include "memory/offload.h"
#include "memory/paged_memory.h"
#include "memory/steering_allocator.h"
#include "passes/stage_rules.h"

namespace abele::compile {
namespace {

// The percentage of compilation time that capture takes in large models.
constexpr int kCapturedPercent = 40;

// The least memory for the tensors of a capture: the operands of a few operators of a large model. The limit of host
// memory for off-chip tensors may be smaller.
constexpr int64_t kLeastPagedBytes = int64_t{64} << 20;

/// A capture under a limit of host memory for off-chip tensors. After each limit_bytes of use, its tensors leave the
/// process's memory, and so do the model's own tensors if they are offloaded.
class PagedCapture {
 public:
  PagedCapture(const ProgramOptions& options, const std::vector<capture::ModelTensor>& model)
      : memory_(options.off_chip_folder),
        scope_(memory_),
        model_(model),
        limit_bytes_(std::max(kLeastPagedBytes, options.off_chip_memory_limit)) {}

  void touched(int64_t bytes) {
    touched_bytes_ += bytes;
    if (touched_bytes_ < limit_bytes_) return;
    touched_bytes_ = 0;
    memory_.release();
    for (const capture::ModelTensor& m : model_) memory::releaseIfOffloaded(*m.tensor);
  }

 private:
  memory::PagedMemory memory_;
  memory::PagedScope scope_;
  const std::vector<capture::ModelTensor>& model_;
  int64_t limit_bytes_, touched_bytes_ = 0;
};

capture::Recording record(const Program& program, const ProgramOptions& options, const std::vector<at::Tensor>& inputs,
                          at::Generator& generator, std::vector<at::Generator> own,
                          const capture::Recording* earlier = nullptr) {
  capture::Request request = requestOf(program, options);
  request.arguments = firstMicroBatches(inputs, 1, inputMicroBatches(options));
  request.generator = &generator;
  request.device = captureDevice(options);
  const OnDevice moved(program.model, request.device);
  request.drops_gradients = moved.hasShapesAlone();
  std::optional<PagedCapture> paged;
  if (options.off_chip_memory_limit >= 0) {
    paged.emplace(options, program.model);
    request.touched = [&](int64_t bytes) { paged->touched(bytes); };
  }
  const AtEnd shapes = oneValueEach(program.model, options.groupings, options.replicas);
  request.generators = std::move(own);
  request.earlier = earlier;
  return capture::capture(request);
}

/// The text of the error, or of the warning, that two captures of one call differ.
Message partingText(const capture::Parting& parting, const std::string& drawn) {
  const std::string scope = parting.scope.empty() ? "" : cat(" in ", parting.scope);
  return {.what = drawn.empty() ? "forward does something else when it is called again with the same arguments"
                                : cat("forward draws random numbers from ", drawn, " while it is being captured"),
          .at = cat(parting.op, parting.op.empty() || parting.source.empty() ? "" : ", ", parting.source, scope),
          .found = cat(parting.first, " in the first call, ", parting.second, " in the second"),
          .expected = "a function of its arguments, the module's parameters and buffers, and torch's random numbers",
          .remedy =
              drawn.empty()
                  ? cat("keep values that change from call to call in a buffer that forward changes in place, or pass "
                        "it as an argument; what is prepared once: call the module once before it is compiled. ",
                        inLanguage("Options::checkCapture(false)"), " keeps what the first call did")
                  : "draw with torch.rand and choose with torch.where, or draw before the call and pass the "
                    "result as an input"};
}

/// The same call twice gives the same program, wherever the state lies that would make it another one. Returns whether
/// forward was captured again.
bool requireSameAgain(const CompileRequest& request, at::Generator& generator, std::vector<at::Generator> own,
                      const capture::Recording& first) {
  const std::string drawn = request.program.draws ? request.program.draws() : std::string();
  const CaptureCheck check = request.options.checks_capture;
  if (drawn.empty() && check == CaptureCheck::kOff) return false;
  const capture::Recording again = [&] {
    const log::Silence silence;  // the first one has warned
    return record(request.program, request.options, request.inputs, generator, std::move(own), &first);
  }();
  if (check == CaptureCheck::kRequires) capture::requireUnseeded(first, again);
  const std::optional<capture::Parting> parting = capture::compare(first, again);
  if (!parting && !drawn.empty())
    log::warn("numbers were drawn from ", drawn,
              " while forward was captured, and a second call gave the same program: if forward drew them, what they "
              "decided now holds for all calls; draw with torch.rand, or pass them as an input");
  if (!parting) return true;
  Message text = partingText(*parting, drawn);
  if (!drawn.empty() || check == CaptureCheck::kRequires) throwUser(ErrorCode::E0101, std::move(text));
  log::warn(text.what, ", and the program keeps what the first call did: ", text.at, ": ", text.found);
  return true;
}

void warnOfWrittenConstants(const capture::Recording& recording) {
  for (const std::string& name : recording.written_constants)
    log::warn(
        "forward writes into ", name,
        ", which is neither a parameter nor a buffer: each call starts from what it held at compile time, and the "
        "tensor itself does not change; to keep what is written, make it a buffer (",
        inLanguage("register_buffer"), ")");
}

/// Adds anchors and their names to the outputs of the captured graph.
Captured addOutputs(MadeProgram& compiled, const capture::Recording& recording, const ProgramOptions& options) {
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

/// Captures the same program with other numbers of micro-batches.
Captured captureAgain(const CompileRequest& asked, const ProgramOptions& options, const OptimizerSpec& optimizer) {
  at::Generator generator = makeGenerator(options);
  const capture::Recording recording =
      record(asked.program, options, asked.inputs, generator, ownGenerators(asked.program));
  MadeProgram other;
  other.optimizer = optimizer;
  describe(other, recording, asked.inputs);
  return addOutputs(other, recording, options);
}

/// Resolves ScheduleRule::kFastest for stages that the user placed.
void chooseSchedule(const Captured& captured, ProgramOptions& options) {
  options.schedule_rule = ScheduleRule::kGiven;
  options.schedule = schedule::ScheduleKind::k1F1B;
  const std::vector<ScheduleChoice> choices = compareSchedules(runPasses(captured, options), options);
  options.schedule = choices.front().schedule;
  for (const ScheduleChoice& choice : choices)
    log::info("schedule auto: ", schedule::scheduleName(choice.schedule), " is predicted to take ", choice.step_ns,
              " ns and ", choice.peak_bytes, " bytes a device",
              &choice == &choices.front() ? ": taken"
              : choice.fits               ? ""
                                          : ": too large");
}

/// Runs the passes. Also chooses the schedule if the user chose none.
void runPassesAndChoose(MadeProgram& compiled, const Captured& captured, ProgramOptions& options) {
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
  log::info("schedule ", schedule::scheduleName(options.schedule), ": ", compiled.schedule_reason);
}

/// Throws E0401 if the pipeline has fewer micro-batches than PopTorch's minimum for its stages.
void checkPipelineMinimum(const ProgramOptions& options, int64_t forward_stages) {
  if (!options.enforce_pipeline_minimum || options.strategy != Strategy::kPipelined) return;
  const int64_t needed = options.training ? 2 * forward_stages - 1 : forward_stages;
  const int64_t given = microBatchesInWork(options);
  const char* name = options.training ? "gradientAccumulation" : "deviceIterations";
  ABELE_REQUIRE(given >= needed, E0401,
                {.what = cat(name, " ", given, " is too small for a pipeline of ", forward_stages, " stages"),
                 .found = cat(name, " ", given),
                 .expected = cat(name, " >= ", needed, options.training ? " = 2 * stages - 1" : " = stages"),
                 .remedy = cat("set ", name, "(", needed, ") and pass ", needed,
                               " micro-batches a call, or lift the minimum with ",
                               inLanguage("Options::enforcePipelineMinimum(false)"))});
}

/// Throws E0402 if there are too few devices for tensorParallel and dataParallel. The plan would name a block for it.
void checkDevicesOfEach(const ProgramOptions& options, const ir::Graph& graph) {
  const int64_t group = options.stages.group, turns = options.data_parallel, of_each = group * turns;
  if (of_each == 1 || options.num_devices == 0) return;
  int64_t needed = 0;
  for (const ir::Stage& stage : graph.stages) {
    const int last = stage.group.empty() ? stage.device : *std::ranges::max_element(stage.group);
    needed = std::max(needed, (last + 1) * turns);
  }
  const int64_t devices = needed / of_each, most = std::max<int64_t>(1, options.num_devices / devices);
  std::string asked = group > 1 ? cat("tensorParallel(", group, ")") : "";
  if (turns > 1) asked += cat(group > 1 ? " and " : "", "dataParallel(", turns, ")");
  ABELE_REQUIRE(needed <= options.num_devices, E0402,
                {.what = cat("a model of ", devices, devices == 1 ? " device" : " devices", " with ", asked, " needs ",
                             needed, " devices"),
                 .found = cat(options.num_devices, " devices"),
                 .expected = cat("at least ", needed),
                 .remedy = cat("use at most ", most, most == 1 ? " device" : " devices",
                               " for each device of the model, or fewer stages")});
}

/// Makes passes, plan and executable of a recording.
void lower(MadeProgram& compiled, const capture::Recording& recording, ProgramOptions options,
           const CompileRequest& asked) {
  const Captured captured = addOutputs(compiled, recording, options);
  if (passes::dividesStages(captured.graph, options.stages)) checkDivision(options);
  if (splitsByItself(options)) placeBySplit(captured.graph, compiled.optimizer, options);
  if (choosesSchedule(options)) chooseSchedule(captured, options);
  runPassesAndChoose(compiled, captured, options);
  if (std::ranges::any_of(compiled.graph.stages, &ir::Stage::isDivided)) compiled.divided_on = machineOfTrials(options);
  TensorNames::addUpdated(compiled.anchors, compiled.graph);
  compiled.phases.end("passes");
  checkDevicesOfEach(options, compiled.graph);
  compiled.plan = plan::makePlan(compiled.graph, planOptions(options));
  compiled.schedule = schedule::scheduleName(compiled.plan.options.schedule);
  compiled.phases.end("plan");
  checkReplicaDevices(options, compiled.plan);
  std::vector<int> devices;
  const int turns = static_cast<int>(compiled.plan.turns());
  for (const int32_t worker : compiled.plan.worker_of)
    for (int place = 0; place < turns; ++place) devices.push_back(compiled.plan.device_of[worker] * turns + place);
  if (asked.program.check_devices) asked.program.check_devices(devices);
  // This follows the check of devices, because more micro-batches would not add a device. PopTorch's minimum applies to
  // stages that the user placed.
  if (!splitsByItself(options)) checkPipelineMinimum(options, passes::forwardStageCount(compiled.graph));
  checkClipping(options, compiled.optimizer);
  compiled.executable = exe::build(compiled.graph, compiled.plan, replicationOf(options),
                                   asked.keeps_origins ? &compiled.origins : nullptr);
  checkStageProcesses(options, compiled.executable);
  checkBuffers(options, compiled.executable, compiled.graph);
  compiled.phases.end("build");
  const int64_t rows =
      asked.inputs.empty() || asked.inputs[0].dim() == 0 ? 0 : asked.inputs[0].size(0) / inputMicroBatches(options);
  requireMemory(compiled.executable, compiled.graph, compiled.plan, captured, options, rows,
                [&](const ProgramOptions& other) { return captureAgain(asked, other, compiled.optimizer); });
  describeStages(compiled);
  compiled.is_made_here = true;
  compiled.phases.end("memory check");
}

/// The devices of the first replica.
std::vector<int> firstDevices(const CompiledProgram& program) {
  std::vector<int> devices;
  for (const exe::WorkerProgram& worker : program.executable.workers)
    if (worker.replica == 0 && !worker.isLink()) devices.push_back(worker.device);
  return devices;
}

/// Takes the cache's program and loads it onto its devices. Returns false if it cannot be used, and then undoes all.
bool loadFound(CompiledProgram found, MadeProgram& made, const ir::Graph& recorded, const CompileRequest& request,
               const ExecutableCache& cache) {
  at::NoGradGuard no_grad;
  try {
    takeExecutable(std::move(found), made, recorded);
    requireMemory(made.executable, request.options);
    request.load();
    return true;
  } catch (const Error& error) {
    cache.warnOf(made.key, error);
  } catch (const std::exception& error) {  // an error of ATen
    cache.warnOf(made.key, UserError(ErrorCode::E0501, {.what = error.what()}));
  }
  made.executable = {};
  made.anchors.clear();
  made.stages.clear();
  return false;
}

/// Takes the program from the cache, or lowers the recording. Returns: true if it came from the cache.
bool lowerOrFind(MadeProgram& made, const capture::Recording& recording, const CompileRequest& request) {
  const ProgramOptions& options = request.options;
  const bool calls_host = std::any_of(recording.graph.nodes.begin(), recording.graph.nodes.end(),
                                      [](const ir::Node& node) { return node.op == "abele_op::host_call"; });
  made.key = cacheKey(recording.graph, options, made.optimizer, recording.kept);
  made.phases.end("key");
  if (options.cache_path.empty() || calls_host) {
    lower(made, recording, options, request);
    return false;
  }
  const ExecutableCache cache(options.cache_path);
  std::optional<ExecutableCache::Lock> lock;
  if (options.cache_lock) lock.emplace(cache.lock(request.program.poll));
  const std::string& key = made.key;
  std::optional<CompiledProgram> found = cache.find(key);
  if (found && loadFound(*std::move(found), made, recording.graph, request, cache)) {
    if (request.program.check_devices) request.program.check_devices(firstDevices(made));
    log::info("executable ", key, " found in ", options.cache_path);
    return true;
  }
  lower(made, recording, options, request);
  cache.store(key, executableOnly(made));
  log::info("executable ", key, " stored in ", options.cache_path);
  return false;
}

}  // namespace

capture::Request requestOf(const Program& program, const ProgramOptions& options) {
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
  request.reads_model = program.reads_model;
  request.trusts_reads = options.trusts_reads;
  request.strides_groups = options.strides_groups;
  request.name_of = program.name_of;
  request.free_garbage = program.free_garbage;
  request.prints_contents = options.checks_capture != CaptureCheck::kOff || program.draws;
  kernels::registerOperatorForms();
  return request;
}

std::vector<at::Generator> ownGenerators(const Program& program) {
  return program.generators ? program.generators() : std::vector<at::Generator>();
}

at::Generator newGenerator(c10::Device device, uint64_t seed) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator made = at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  made.set_current_seed(seed);
  return made;
}

at::Generator makeGenerator(const ProgramOptions& options) {
  const c10::Device device = captureDevice(options);
  if (options.has_seed) return newGenerator(device, options.seed);
  return at::globalContext().defaultGenerator(device).clone();
}

namespace {

ProgramOptions placedAt(ProgramOptions options, const PlacementCandidate& candidate) {
  options.stages.devices = candidate.in_turn ? 1 : candidate.devices;
  options.data_parallel = candidate.in_turn ? candidate.devices : 1;
  return options;
}

constexpr int64_t kLongNs = 200'000'000;  // a call from here on is long for a trial

/// Builds the program for a call of another number of micro-batches. The stages and the schedule stay.
void buildFor(MadeProgram& made, const ProgramOptions& options) {
  const plan::PlanOptions counts = planOptions(options);
  plan::PlanOptions planned = made.plan.options;
  planned.device_iterations = counts.device_iterations;
  planned.accumulation = counts.accumulation;
  made.plan = plan::makePlan(made.graph, planned);
  made.executable = exe::build(made.graph, made.plan, replicationOf(options));
}

}  // namespace

ProgramOptions measureDevices(const CompileRequest& request, const capture::Recording& recording,
                              const MadeProgram& made, const TimeProgram& time, MeasuredPlacement& placement) {
  ProgramOptions options = request.options;
  if (!measuresDevices(options)) return options;
  options.stages.devices = 0;
  if (const std::string why = whyNotMeasured(recording.graph, options); !why.empty()) {
    log::warn("AutoSplit: the number of devices cannot be measured, since ", why, "; there is one for each core");
    return options;
  }
  const PlacementStore store(options.cache_path, cacheKey(recording.graph, options, made.optimizer, recording.kept),
                             machineText(options));
  if (std::optional<MeasuredPlacement> kept = store.find()) {
    placement = *std::move(kept);
  } else {
    std::optional<bool> is_long;  // the first candidate that runs tells
    const auto tried = [&](const PlacementCandidate& candidate, bool again) {
      const ProgramOptions whole = placedAt(options, candidate);
      MadeProgram lowered = made;
      lower(lowered, recording, whole, request);
      const auto timed = [&](MadeProgram trial, const ProgramOptions& with) {
        const TimedCall call = time(std::move(trial), with, again);
        return PlacementTrial{
            .candidate = candidate, .threads = call.threads, .step_ns = wholeCallNs(whole, with, call)};
      };
      if (is_long.value_or(true)) {
        const ProgramOptions part = shortCall(whole, candidate.devices);
        MadeProgram trial = lowered;
        buildFor(trial, part);
        const PlacementTrial result = timed(std::move(trial), part);
        if (!is_long) is_long = result.step_ns >= kLongNs;
        if (*is_long) return result;
      }
      return timed(std::move(lowered), whole);
    };
    placement = {.machine = machineText(options), .trials = tryCandidates(placementCandidates(options), tried)};
    store.keep(placement);
  }
  log::info(placement.text());
  return placedAt(options, placement.best().candidate);
}

capture::Recording captureProgram(const CompileRequest& request, at::Generator& generator, MadeProgram& made) {
  std::vector<at::Generator> own = ownGenerators(request.program);
  capture::Recording recording = record(request.program, request.options, request.inputs, generator, own);
  made.phases.end("capture");
  if (requireSameAgain(request, generator, std::move(own), recording)) made.phases.end("second capture");
  warnOfWrittenConstants(recording);
  if (request.program.recorded) request.program.recorded(recording);
  if (request.program.progress) request.program.progress(kCapturedPercent, 100);
  describe(made, recording, request.inputs);
  return recording;
}

bool compileRecording(const CompileRequest& request, capture::Recording recording, MadeProgram& made) {
  const bool from_cache = lowerOrFind(made, recording, request);
  made.captured = std::move(recording.graph);
  return from_cache;
}

}  // namespace abele::compile
