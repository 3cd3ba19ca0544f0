// abele::TrainingModel and InferenceModel: how they are made, and their calls.
#include "abele/model.h"

#include <map>
#include <mutex>

#include "host/public_core.h"

namespace abele {

/// The Sharing of a module; alive while a model of the module is.
std::shared_ptr<CompiledModel::Sharing> CompiledModel::sharingOf(const torch::nn::Module* module) {
  static std::mutex mu;
  static std::map<const torch::nn::Module*, std::weak_ptr<Sharing>> all;
  std::lock_guard lock(mu);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  if (!module) return std::make_shared<Sharing>();
  std::shared_ptr<Sharing> sharing = all[module].lock();
  if (!sharing) all[module] = sharing = std::make_shared<Sharing>();
  return sharing;
}

/// Makes the public objects.
class ModelAccess {
 public:
  template <class Model, class... Parts>
  static Model build(Parts&&... parts) {
    return Model(std::make_unique<CompiledModel::Core>(std::forward<Parts>(parts)...));
  }
};

namespace {

std::string formOf(const std::vector<at::Tensor>& tensors) { return std::string(tensors.size(), 't'); }

detail::StructuredForward ofLists(Forward forward) {
  return [forward = std::move(forward)](const std::vector<at::Tensor>& inputs, const std::string&) {
    return detail::flattenedResults(forward(inputs));
  };
}

}  // namespace

TrainingModel makeTrainingModel(torch::nn::Module& module, Forward forward, const Options& options,
                                const optim::Optimizer& optimizer, const std::source_location& line) {
  return detail::makeTrainingModel(module, ofLists(std::move(forward)), options, optimizer, line);
}
InferenceModel makeInferenceModel(torch::nn::Module* module, Forward forward, const Options& options,
                                  const std::source_location& line) {
  return detail::makeInferenceModel(module, ofLists(std::move(forward)), options, line);
}
TrainingModel detail::makeTrainingModel(torch::nn::Module& module, StructuredForward forward, const Options& options,
                                        const optim::Optimizer& optimizer, const std::source_location& line) {
  auto model = ModelAccess::build<TrainingModel>(&module, std::move(forward), options, &optimizer, host::textOf(line));
  host::optimizerSpec(optimizer, host::tensorsOf(module));  // refuses a wrong optimizer at once
  return model;
}
InferenceModel detail::makeInferenceModel(torch::nn::Module* module, StructuredForward forward, const Options& options,
                                          const std::source_location& line) {
  return ModelAccess::build<InferenceModel>(module, std::move(forward), options, nullptr, host::textOf(line));
}

TrainingModel loadTrainingModel(const std::string& path, const Options& options) {
  const optim::Optimizer unused = optim::SGD{};
  return ModelAccess::build<TrainingModel>(path, nullptr, options, &unused);
}
TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  const optim::Optimizer unused = optim::SGD{};
  return ModelAccess::build<TrainingModel>(path, &module, options, &unused);
}
InferenceModel loadInferenceModel(const std::string& path, const Options& options) {
  return ModelAccess::build<InferenceModel>(path, nullptr, options, nullptr);
}
InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  return ModelAccess::build<InferenceModel>(path, &module, options, nullptr);
}

CompiledModel::Core& CompiledModel::core() const {
  ABELE_REQUIRE(core_, E0705, {.what = "this model was moved from", .remedy = "use the object that it was moved to"});
  return *core_;
}
CompiledModel::CompiledModel(std::unique_ptr<Core> core) : core_(std::move(core)) {}
CompiledModel::CompiledModel(CompiledModel&&) noexcept = default;
CompiledModel& CompiledModel::operator=(CompiledModel&&) noexcept = default;
CompiledModel::~CompiledModel() = default;

std::vector<at::Tensor> CompiledModel::operator()(const std::vector<at::Tensor>& inputs) {
  return core().run(inputs, formOf(inputs));
}
std::vector<at::Tensor> CompiledModel::runFlat(const detail::Flat& inputs) {
  return core().run(inputs.tensors, inputs.form);
}
void CompiledModel::compile(const std::vector<at::Tensor>& inputs) { core().compile(inputs, formOf(inputs)); }
void CompiledModel::compileFlat(const detail::Flat& inputs) { core().compile(inputs.tensors, inputs.form); }
std::string CompiledModel::resultForm() const { return core().resultForm(); }
MemoryReport CompiledModel::memoryReport() const { return core().memoryReport(); }
void CompiledModel::compileAndExport(const std::string& path, const std::vector<at::Tensor>& inputs) {
  if (!isCompiled()) compile(inputs);
  save(path);
}
void CompiledModel::loadExecutable(const std::string& path) { core().load(path); }
bool CompiledModel::isCompiled() const { return core().isCompiled(); }
const Options& CompiledModel::options() const { return core().options(); }
void CompiledModel::copyWeightsToHost() { core().download(); }
bool CompiledModel::copyWeightsToHostIfNeeded() { return core().pullIfStale(); }
void CompiledModel::copyWeightsToDevice() { core().upload(); }
void CompiledModel::copyNamedBuffersToDevice() { core().uploadBuffers(); }
std::map<std::string, at::Tensor> CompiledModel::stateDict() { return core().stateDict(); }
void CompiledModel::loadStateDict(const std::map<std::string, at::Tensor>& state) { core().loadStateDict(state); }
bool CompiledModel::isAttachedToDevice() const { return core().isAttached(); }
void CompiledModel::attachToDevice() { core().attach(); }
void CompiledModel::detachFromDevice() { core().detach(); }
at::Tensor CompiledModel::rngState() const { return core().compiled("rngState()").rngState(); }
void CompiledModel::setRngState(const at::Tensor& state) {
  host::Session& session = core().compiled("setRngState()");
  const at::Tensor now = session.rngState();
  const auto refuse = [&] {
    throwUser(ErrorCode::E0708, {.what = "this is no state of a random stream",
                                 .found = state.defined() ? host::shapeOf(state) : "an undefined tensor",
                                 .expected = host::shapeOf(now),
                                 .remedy = "pass what rngState() returned"});
  };
  if (!state.defined() || state.scalar_type() != now.scalar_type()) refuse();
  try {
    session.setRngState(state);  // with or without a part for stochastic rounding
  } catch (const c10::Error&) {
    refuse();
  }
}
const std::vector<std::string>& CompiledModel::getTensorNames() const {
  return core().compiled("getTensorNames()").tensorNames();
}
at::Tensor CompiledModel::getAnchoredTensor(const std::string& short_name) const {
  return core().compiled("getAnchoredTensor()").anchor(short_name);
}
ModelTimes CompiledModel::getPerfCounters() const {
  host::PerfCounters counters = core().compiled("getPerfCounters()").perfCounters();
  return {std::move(counters.input), std::move(counters.input_complete), std::move(counters.output),
          std::move(counters.output_complete)};
}
int64_t CompiledModel::cycleCount() const { return core().cycles(); }
std::string CompiledModel::report() const { return core().report(); }
std::string CompiledModel::costs() const { return core().costs(); }
std::string CompiledModel::explain() const { return core().explain(); }
std::string explain(const CompiledModel& model) { return model.explain(); }
void CompiledModel::save(const std::string& path) { core().save(path); }
void CompiledModel::destroy() { core().destroy(); }
void CompiledModel::setInterrupt(std::function<bool()> poll) { core().setInterrupt(std::move(poll)); }

void TrainingModel::replicaGrouping(const std::string& parameter, CommGroupType type, int64_t shards,
                                    VariableRetrievalMode mode) {
  core().group(parameter, type, shards, mode);
}
const optim::Optimizer& TrainingModel::optimizer() const { return core().optimizer(); }
void TrainingModel::setOptimizer(const optim::Optimizer& optimizer) { core().setOptimizer(optimizer); }
void TrainingModel::setOptimizer(const torch::optim::Optimizer& optimizer) {
  ABELE_REQUIRE(core().module(), E0706,
                {.what = "an optimizer of LibTorch for a model that was loaded without a module",
                 .remedy = "pass one of abele::optim, or load the model with its module"});
  setOptimizer(optim::fromTorch(optimizer, *core().module()));
}
std::map<std::string, at::Tensor> TrainingModel::optimizerState() const {
  return core().compiled("optimizerState()").optimizerState();
}
double TrainingModel::lossScale() const { return core().compiled("lossScale()").lossScale(); }
void TrainingModel::setOptimizerState(const std::map<std::string, at::Tensor>& state) {
  core().compiled("setOptimizerState()").setOptimizerState(state);
}

}  // namespace abele
