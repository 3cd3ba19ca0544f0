// verify: eager and compiled side by side, batch after batch.
#include "verification/verify.h"

#include <algorithm>
#include <compare>
#include <mutex>
#include <unordered_set>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/instructions.h"
#include "compile/device_list.h"
#include "compile/inputs.h"
#include "compile/meta_tensors.h"
#include "compile/tensors.h"
#include "device/backend.h"
#include "ir/rewrite.h"
#include "session/impl.h"
#include "verification/verify_eager.h"

namespace abele::verification {
namespace {

using ir::ValueId;

// The most bytes of eager's values that are kept, for the numbers of the first one that differs.
constexpr int64_t kKeptBytes = int64_t{256} << 20;

/// Place in the order in which eager computes a batch.
struct EagerPlace {
  int64_t micro_batch = 0;
  int64_t position = 0;  // among the nodes of the captured graph; results, gradients and weights follow
  auto operator<=>(const EagerPlace&) const = default;
};

/// The value to look at in a second run, in which its numbers are kept.
struct Wanted {
  int64_t batch = 0;
  int64_t micro_batch = 0;
  ValueId value = ir::kNone;  // kNone: the first one that plain eager does not compute
};

/// What eager computed in one batch.
struct EagerValues {
  struct Value {
    bool is_seen = false;
    uint64_t fingerprint = 0;
    at::Tensor kept;
  };
  std::vector<std::vector<Value>> values;   // by micro-batch and value
  std::vector<std::vector<uint64_t>> sums;  // by micro-batch and tensor of the model: gradients so far, 0: none
  std::vector<std::vector<at::Tensor>> sum_tensors;  // while there is room
  int64_t kept_bytes = 0;

  at::Tensor keep(const at::Tensor& tensor, bool always) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (!always && kept_bytes + bytes > kKeptBytes) return {};
    kept_bytes += bytes;
    return hostCopy(tensor);
  }
};

struct Found {
  EagerPlace place;
  ValueId value = ir::kNone;
  int32_t model_tensor = -1;
  int32_t stage = -1;
  std::string kind = kValue;
  at::Tensor found, expected;
};

/// Compares what the devices compute with what eager has computed of the same batch.
class Comparison final : public device::Watch {
 public:
  void start(const session::Compiled& compiled, const EagerValues& eager) {
    compiled_ = &compiled;
    eager_ = &eager;
    if (position_.empty()) prepare(compiled);
  }
  void stop() { eager_ = nullptr; }

  void computed(const runtime::ActionContext& action, int32_t instruction, int32_t slot,
                const at::Tensor& tensor) override {
    if (!eager_) return;
    const auto segment = static_cast<size_t>(action.segment);
    if (const int32_t parameter = parameterOf(segment, instruction); parameter >= 0)
      return compareSum(action, parameter, tensor);
    if (segment >= compiled_->origins.size() || instruction >= static_cast<int64_t>(compiled_->origins[segment].size()))
      return;
    const auto& values = eager_->values[action.micro_batch];
    for (const exe::Origin& origin : compiled_->origins[segment][instruction]) {
      if (origin.slot != slot || static_cast<size_t>(origin.value) >= values.size()) continue;
      const EagerValues::Value& eager = values[origin.value];
      if (!eager.is_seen) continue;
      const bool is_equal = fingerprint(tensor) == eager.fingerprint;
      const std::lock_guard lock(mu_);
      ++count_;
      if (is_equal) continue;
      note({.place = {action.micro_batch, position_[origin.value]},
            .value = origin.value,
            .stage = compiled_->executable.segments[segment].stage,
            .expected = eager.kept},
           tensor);
    }
  }

  int64_t takeCount() { return std::exchange(count_, 0); }
  std::optional<Found>& first() { return first_; }

 private:
  // Positions of values, and for each gradient sum the instruction that is the last to add to it.
  void prepare(const session::Compiled& compiled) {
    const ir::Graph& captured = compiled.captured;
    const std::vector<int32_t> positions = ir::positionsById(captured);
    for (const ir::Value& value : captured.values)
      position_.push_back(value.def == ir::kNone ? -1 : positions[value.def]);
    const exe::Executable& executable = compiled.executable;
    sums_of_.resize(executable.segments.size());
    for (size_t s = 0; s < executable.segments.size(); ++s)
      for (size_t i = 0; i < executable.segments[s].instructions.size(); ++i) {
        const exe::Instruction& instruction = executable.segments[s].instructions[i];
        const bool adds = hasTrait(instruction.op, kSums) || ownOp(instruction.op) == OwnOp::kAdd;
        if (!adds || instruction.writes.empty() || executable.segments[s].direction == exe::Direction::kUpdate)
          continue;
        const int32_t parameter = ownerOf(compiled, instruction.writes[0]);
        std::erase_if(sums_of_[s], [&](const auto& earlier) { return earlier.second == parameter && parameter >= 0; });
        sums_of_[s].emplace_back(static_cast<int32_t>(i), parameter);
      }
  }

  static int32_t ownerOf(const session::Compiled& compiled, int32_t written) {
    const exe::Executable& executable = compiled.executable;
    const exe::Slot& slot = executable.slots[written];
    for (const exe::External& external : executable.externals) {
      if (external.kind != exe::ExternalKind::kAccumulator || external.slot < 0) continue;
      const exe::Slot& own = executable.slots[external.slot];
      if (own.group != slot.group || own.offset_bytes != slot.offset_bytes) continue;
      const std::string& name = executable.externals[external.owner].name;
      for (size_t m = 0; m < compiled.model.size(); ++m)
        if (compiled.model[m].name == name) return static_cast<int32_t>(m);
    }
    return -1;
  }

  int32_t parameterOf(size_t segment, int32_t instruction) const {
    for (const auto& [index, parameter] : sums_of_[segment])
      if (index == instruction) return parameter;
    return -1;
  }

  void compareSum(const runtime::ActionContext& action, int32_t parameter, const at::Tensor& tensor) {
    const auto k = static_cast<size_t>(action.micro_batch);
    const uint64_t expected = eager_->sums[k][parameter];
    const at::Tensor& kept = eager_->sum_tensors[k][parameter];
    if (expected == 0 || (kept.defined() && kept.scalar_type() != tensor.scalar_type())) return;
    const bool is_equal = fingerprint(tensor) == expected;
    const std::lock_guard lock(mu_);
    ++count_;
    if (is_equal) return;
    note({.place = {action.micro_batch, static_cast<int64_t>(compiled_->captured.nodes.size()) + parameter},
          .model_tensor = parameter,
          .stage = compiled_->executable.segments[action.segment].stage,
          .kind = kGradient,
          .expected = kept},
         tensor);
  }

  void note(Found found, const at::Tensor& tensor) {
    if (first_ && first_->place <= found.place) return;
    found.found = hostCopy(tensor);  // on the stream that made it
    first_ = std::move(found);
  }

  const session::Compiled* compiled_ = nullptr;
  const EagerValues* eager_ = nullptr;
  std::vector<int64_t> position_;                                  // by value
  std::vector<std::vector<std::pair<int32_t, int32_t>>> sums_of_;  // by segment: instruction, tensor of the model
  std::mutex mu_;
  int64_t count_ = 0;
  std::optional<Found> first_;
};

/// One pass over the batches.
class Run {
 public:
  Run(const VerifyRequest& request, const std::vector<std::vector<at::Tensor>>& batches, std::optional<Wanted> wanted)
      : request_(request),
        batches_(batches),
        wanted_(wanted),
        device_(compile::captureDevice(request.options)),
        restored_(restoreModel(request.program.model)) {
    if (!device_.is_cpu()) moved_.emplace(request.program.model, device_);
  }

  Verification run() {
    compile::ProgramOptions options = request_.options;
    options.cache_path.clear();
    options.anchors.clear();
    options.share_weights = false;  // eager has the same parameters
    options.output_mode = compile::OutputMode::kAll;
    micro_batches_ = options.device_iterations * options.gradient_accumulation;
    session::Session session(options);
    session.parts().watch = &comparison_;
    session.compile(request_.program, batches_[0], request_.optimizer);
    compiled_ = session.parts().compiled.get();
    const AtEnd generators = restoreGenerators(compiled_->own_streams);
    compiled_->warned_of_edits = true;  // eager's updates write the same tensors
    const AtEnd scope = useThreadsAndRandom(session::threadsPerDevice(options, compiled_->executable), options);
    update_ = request_.make_update ? request_.make_update() : torchUpdate(request_.optimizer, request_.program.model);
    if (options.training && !update_)
      result_.notes.push_back("weights after the update: torch has no optimizer with these rules");
    ABELE_REQUIRE(!options.training || update_ || options.device_iterations == 1, E0702,
                  {.what = "verify has no eager counterpart of this optimizer, which updates several times in a call",
                   .found = cat("deviceIterations ", options.device_iterations),
                   .expected = "1",
                   .remedy = "verify with deviceIterations(1)"});
    constants_ = session.program().constants;
    for (size_t b = 0; b < batches_.size() && !result_.difference; ++b) {
      batch_ = static_cast<int64_t>(b);
      runBatch(session);
      ++result_.batches;
      result_.micro_batches += micro_batches_;
    }
    if (result_.micro_batches == 1)
      result_.notes.push_back("constants of the program: there is one micro-batch, and none to compare it with");
    result_.text = textOf(result_);
    return std::move(result_);
  }

  /// The value that a second run has to keep; nothing: a second run is not needed.
  const std::optional<Wanted>& wanted() const { return want_; }

 private:
  void runBatch(session::Session& session) {
    eager_ = {};
    first_.reset();
    std::vector<std::vector<at::Tensor>> results;
    {
      const AtEnd generators = restoreGenerators(compiled_->own_streams);
      for (int64_t k = 0; k < micro_batches_; ++k) results.push_back(runEagerly(k));
    }
    comparison_.start(*compiled_, eager_);
    const std::vector<at::Tensor> device = session.run(batches_[batch_]);
    comparison_.stop();
    result_.values += comparison_.takeCount();
    if (comparison_.first()) take(*comparison_.first());
    for (int64_t k = 0; k < micro_batches_; ++k) compareResults(device, k, results[k]);
    compareWeights();
    if (first_) report();
  }

  // One micro-batch: captured once more, then plainly. Returns the results of forward.
  std::vector<at::Tensor> runEagerly(int64_t k) {
    const std::vector<at::Tensor> arguments = session::partOf(batches_[batch_], k, micro_batches_);
    const capture::Recording recording = record(k, arguments);
    if (std::optional<Parting> parting =
            compareCaptures(compiled_->captured, constants_, recording.graph, recording.constants))
      takeParting(k, *std::move(parting));
    if (constants_.size() <= recording.constants.size()) constants_.resize(recording.constants.size());
    for (size_t i = 0; i < recording.constants.size(); ++i)
      if (!constants_[i].defined()) constants_[i] = recording.constants[i];
    const bool observes = wanted_ && wanted_->value == ir::kNone && isWanted(k);
    std::unordered_set<uint64_t> seen;
    const AtEnd observer = observeResults(observes ? &seen : nullptr);
    PlainStep plain = runPlainly(request_, compiled_->captured, arguments, lossGradient(), device_);
    if (observes) nameFirstUnknown(k, seen);
    compareWithPlain(k, recording, plain);
    addGradients(k, plain.gradients.empty() ? recording.gradients : plain.gradients);
    return std::move(plain.results);
  }

  capture::Recording record(int64_t k, const std::vector<at::Tensor>& arguments) {
    capture::Request request = compile::requestOf(request_.program, request_.options);
    at::Generator generator = at::globalContext().defaultGenerator(device_).clone();
    request.generator = &generator;
    request.device = device_;
    request.arguments = compile::firstMicroBatches(arguments, 1, 1);
    request.generators = compile::ownGenerators(request_.program);
    request.loss_gradient = lossGradient();
    auto& values = eager_.values.emplace_back(compiled_->captured.values.size());
    request.made = [&](ValueId value, const at::Tensor& tensor) {
      if (static_cast<size_t>(value) >= values.size() || isUnwritten(value)) return;
      EagerValues::Value& seen = values[value];
      seen = {true, fingerprint(tensor), eager_.keep(tensor, isWanted(k) && wanted_->value == value)};
    };
    return capture::capture(request);
  }

  // Memory that was not written yet, or that only kernels use.
  bool isUnwritten(ValueId value) const {
    const int64_t position = positionOf(value);
    if (position < 0) return false;
    const ir::Node& node = compiled_->captured.nodes[position];
    if (node.op == "aten::mkldnn_rnn_layer") return compiled_->captured.values[value].type.dtype == DType::kUInt8;
    return node.op.starts_with("aten::empty") || node.op.starts_with("aten::new_empty");
  }
  int64_t positionOf(ValueId value) const {
    if (positions_.empty()) positions_ = ir::positionsById(compiled_->captured);
    const ir::NodeId def = compiled_->captured.values[value].def;
    return def == ir::kNone ? -1 : positions_[def];
  }

  bool isWanted(int64_t k) const { return wanted_ && wanted_->batch == batch_ && wanted_->micro_batch == k; }

  double lossGradient() const {
    const double plain = compile::requestOf(request_.program, request_.options).loss_gradient;
    return plain * session::finalLossScale(*compiled_);
  }

  int64_t numNodes() const { return static_cast<int64_t>(compiled_->captured.nodes.size()); }

  // --- differences ---------------------------------------------------------------------------------------------------
  void take(Found found) {
    if (first_ && first_->place <= found.place) return;
    first_ = std::move(found);
    parting_.reset();
  }
  void takeParting(int64_t k, Parting parting) {
    Found found{.place = {k, parting.position}, .kind = parting.difference.kind};
    if (first_ && first_->place <= found.place) return;
    take(std::move(found));
    parting_ = std::move(parting.difference);
  }

  // Compares eager's results during a capture with those without one.
  void compareWithPlain(int64_t k, const capture::Recording& recording, const PlainStep& plain) {
    if (recording.results.size() != plain.results.size()) return;
    for (size_t i = 0; i < plain.results.size(); ++i) {
      const at::Tensor &a = recording.results[i], &b = plain.results[i];
      if (!a.defined() || !b.defined() || a.layout() != at::kStrided) continue;
      ++result_.values;
      if (isSame(a, b)) continue;
      // Results come in other types where the program narrows them; those bits are compared with the devices'.
      if (a.scalar_type() != b.scalar_type()) continue;
      take({.place = {k, numNodes() + static_cast<int64_t>(i)},
            .value = resultValue(i),
            .kind = kCapture,
            .found = a.detach().clone(),
            .expected = b.detach().clone()});
    }
  }

  ValueId resultValue(size_t result) const {
    for (const ir::Output& output : compiled_->captured.outputs)
      if (output.kind == ir::OutputKind::kResult && output.target == static_cast<int32_t>(result)) return output.value;
    return ir::kNone;
  }

  // Names the first recorded value that eager did not compute without a capture.
  void nameFirstUnknown(int64_t k, const std::unordered_set<uint64_t>& plain) {
    const auto& values = eager_.values.back();
    ValueId first = ir::kNone;
    for (size_t v = 0; v < values.size(); ++v) {
      if (!values[v].is_seen || plain.contains(values[v].fingerprint)) continue;
      const auto value = static_cast<ValueId>(v);
      const auto position = static_cast<size_t>(positionOf(value));
      if (compiled_->captured.nodes[position].op == "aten::_to_copy") continue;  // capture widens some operands
      if (first == ir::kNone || positionOf(value) < positionOf(first)) first = value;
    }
    if (first == ir::kNone) return;
    take({.place = {k, positionOf(first)}, .value = first, .kind = kCapture, .found = values[first].kept});
  }

  void addGradients(int64_t k, const std::vector<std::vector<at::Tensor>>& gradients) {
    if (!request_.options.training) return;
    const c10::InferenceMode not_inference(false);
    const c10::AutoGradMode no_grad(false);
    const int64_t accumulation = request_.options.gradient_accumulation;
    if (k % accumulation == 0) sums_.assign(request_.program.model.size(), at::Tensor());
    auto& prints = eager_.sums.emplace_back(sums_.size(), 0);
    auto& tensors = eager_.sum_tensors.emplace_back(sums_.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].empty()) continue;
      for (const at::Tensor& gradient : gradients[i])
        sums_[i] = sums_[i].defined() ? sums_[i].add(gradient) : gradient.detach().clone();
      prints[i] = fingerprint(sums_[i]);
      tensors[i] = eager_.keep(sums_[i], /*always=*/false);
    }
    if ((k + 1) % accumulation == 0 && update_) update_(unscaledGradients(sums_, request_.optimizer));
  }

  // Results of the call lie one micro-batch after the other.
  void compareResults(const std::vector<at::Tensor>& device, int64_t k, const std::vector<at::Tensor>& plain) {
    if (device.size() != plain.size()) return;
    for (size_t i = 0; i < plain.size(); ++i) {
      if (!plain[i].defined() || !device[i].defined() || plain[i].layout() != at::kStrided) continue;
      const int64_t rows = device[i].dim() == 0 ? 0 : device[i].size(0) / micro_batches_;
      at::Tensor part = rows == 0 ? device[i] : device[i].narrow(0, k * rows, rows);
      if (part.numel() != plain[i].numel() || part.scalar_type() != plain[i].scalar_type()) continue;
      part = part.reshape(plain[i].sizes());
      ++result_.values;
      if (isSame(part, plain[i])) continue;
      take({.place = {k, numNodes() + static_cast<int64_t>(request_.program.model.size() + i)},
            .value = resultValue(i),
            .found = part.clone(),
            .expected = plain[i].detach().clone()});
    }
  }

  // Compares parameters and buffers after the step. If no eager optimizer is known, eager continues from the devices'
  // weights.
  void compareWeights() {
    const c10::AutoGradMode no_grad(false);
    for (size_t e = 0; e < compiled_->executable.externals.size(); ++e) {
      const exe::External& external = compiled_->executable.externals[e];
      const auto kind = external.kind;
      if (external.slot < 0 || (kind != exe::ExternalKind::kParameter && kind != exe::ExternalKind::kBuffer)) continue;
      const auto own =
          std::ranges::find_if(request_.program.model, [&](const auto& m) { return m.name == external.name; });
      if (own == request_.program.model.end()) continue;
      const at::Tensor expected = session::memoryOf(*compiled_, e, *own->tensor).detach();
      const at::Tensor found = compiled_->backend->value(static_cast<int32_t>(e));
      if (kind == exe::ExternalKind::kParameter && request_.options.training && !update_) {
        expected.copy_(found);
        continue;
      }
      ++result_.values;
      if (isSame(found, expected)) continue;
      take({.place = {micro_batches_, static_cast<int64_t>(own - request_.program.model.begin())},
            .model_tensor = static_cast<int32_t>(own - request_.program.model.begin()),
            .kind = kWeight,
            .found = found,
            .expected = expected.clone()});
    }
  }

  void report() {
    Difference difference = parting_ ? *parting_ : differenceOf(first_->kind);
    if (parting_) {
      const auto position = static_cast<size_t>(first_->place.position);
      if (position < compiled_->captured.nodes.size())
        describeNode(compiled_->captured.nodes[position], compiled_->graph, difference);
    }
    difference.batch = batch_;
    difference.micro_batch = std::min(first_->place.micro_batch, micro_batches_ - 1);
    if (first_->model_tensor >= 0) {
      const std::string& name = request_.program.model[first_->model_tensor].name;
      difference.op = name;
      describeOwner(name, difference);
    } else if (first_->value != ir::kNone && positionOf(first_->value) >= 0) {
      describeNode(compiled_->captured.nodes[positionOf(first_->value)], compiled_->graph, difference);
    }
    if (first_->stage >= 0) difference.stage = first_->stage;
    if (first_->found.defined() && first_->expected.defined())
      compareElements(first_->found, first_->expected, difference);
    else if (!parting_ && first_->value != ir::kNone && !wanted_)
      want_ = Wanted{batch_, first_->place.micro_batch, first_->value};
    // The values of a captured run are known; which of them a plain run lacks is not.
    if (first_->kind == kCapture && !wanted_) want_ = Wanted{batch_, first_->place.micro_batch, ir::kNone};
    result_.difference = std::move(difference);
  }

  // Describes the last write of the tensor, or of a parameter's gradient sum.
  void describeOwner(const std::string& name, Difference& difference) const {
    const std::string written = difference.kind == kGradient ? cat("grad/", name) : name;
    for (const ir::Node& node : compiled_->graph.nodes)
      for (const ir::Write& write : node.writes)
        for (const ir::Input& input : compiled_->graph.inputs) {
          if (input.value != compiled_->graph.baseOf(write.before) || input.kind == ir::InputKind::kArgument) continue;
          if (compiled_->graph.externals[input.external].name != written) continue;
          difference.line = node.source;
          difference.scope = node.scope;
          difference.stage = node.stage;
          difference.direction = exe::directionName(static_cast<exe::Direction>(node.direction));
        }
  }

  const VerifyRequest& request_;
  const std::vector<std::vector<at::Tensor>>& batches_;
  const std::optional<Wanted> wanted_;
  const c10::Device device_;  // for eager steps and captures
  const AtEnd restored_;
  std::optional<compile::OnDevice> moved_;  // the model is there during the comparison
  Comparison comparison_;
  session::Compiled* compiled_ = nullptr;
  Update update_;
  std::vector<at::Tensor> constants_;  // by external, as compiled
  mutable std::vector<int32_t> positions_;
  int64_t micro_batches_ = 1, batch_ = 0;
  EagerValues eager_;
  std::vector<at::Tensor> sums_;  // gradient sums of the group, by tensor of the model
  std::optional<Found> first_;    // in this batch
  std::optional<Difference> parting_;
  std::optional<Wanted> want_;
  Verification result_;
};

void checkRequest(const VerifyRequest& request, const std::vector<std::vector<at::Tensor>>& batches) {
  ABELE_REQUIRE(!batches.empty(), E0708, {.what = "verify without a batch", .remedy = "pass the inputs of one call"});
  const compile::ProgramOptions& options = request.options;
  const auto refuse = [](bool holds, const char* what, const char* remedy) {
    ABELE_REQUIRE(holds, E0702, {.what = cat("verify has no eager counterpart of ", what), .remedy = remedy});
  };
  refuse(options.replicas == 1 && options.processes.count == 1,
         "replicas, which add gradients in an order of their own", "verify with replicationFactor(1) in one process");
  refuse(!options.stochastic_rounding, "stochastic rounding", "verify without it");
  refuse(!options.auto_loss_scaling, "automatic loss scaling", "verify with a fixed loss scaling");
  refuse(options.synthetic_data == compile::SyntheticData::kOff, "synthetic data", "verify with the real inputs");
  const std::vector<c10::Device> devices = compile::deviceList(options.device);
  const auto isCpu = [](c10::Device device) { return device.is_cpu(); };
  refuse(std::ranges::all_of(devices, isCpu) || std::ranges::none_of(devices, isCpu),
         "stages on the CPU among accelerators: eager runs on one device, whose kernels are others",
         "verify with devices of one kind");
}

}  // namespace

Verification verify(const VerifyRequest& request, const std::vector<std::vector<at::Tensor>>& batches) {
  checkRequest(request, batches);
  const c10::InferenceMode not_inference(false);
  std::optional<Wanted> wanted;
  Verification result;
  {
    Run run(request, batches, {});
    result = run.run();
    wanted = run.wanted();
  }
  if (!wanted) return result;
  // A program that does something else each time may be equal now; then the first finding stands without numbers.
  Verification again = Run(request, batches, wanted).run();
  return again.difference ? again : result;
}

}  // namespace abele::verification
