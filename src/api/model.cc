// abele::TrainingModel and InferenceModel: construction and calls.
#include "abele/model.h"

#include "abele/verify.h"
#include "api/core.h"
#include "base/error.h"
#include "modules/lines.h"
#include "modules/module.h"
#include "optimizer/optimizer.h"
#include "options/run_time.h"

namespace abele {

namespace {

std::string formOf(const std::vector<at::Tensor>& tensors) { return std::string(tensors.size(), 't'); }

detail::StructuredForward ofLists(Forward forward) {
  if (!forward) detail::refuseEmptyForward();
  return [forward = std::move(forward)](const std::vector<at::Tensor>& inputs, const std::string&) {
    return detail::flattenedResults(forward(inputs));
  };
}

TrainingModel training(const std::string& path, torch::nn::Module* module, const Options* options) {
  const optim::Optimizer unused = optim::SGD{};
  return ModelAccess::build<TrainingModel>(path, module, options, &unused);
}
InferenceModel inference(const std::string& path, torch::nn::Module* module, const Options* options) {
  return ModelAccess::build<InferenceModel>(path, module, options, nullptr);
}

Latency latencyOf(const session::Session& session, session::Way way) {
  const session::Latency found = session.latency(way);
  return {found.least, found.most, found.average};
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
  auto model =
      ModelAccess::build<TrainingModel>(&module, std::move(forward), options, &optimizer, modules::textOf(line));
  optimizer::optimizerSpec(optimizer, modules::tensorsOf(module));  // refuses a wrong optimizer at once
  return model;
}
InferenceModel detail::makeInferenceModel(torch::nn::Module* module, StructuredForward forward, const Options& options,
                                          const std::source_location& line) {
  return ModelAccess::build<InferenceModel>(module, std::move(forward), options, nullptr, modules::textOf(line));
}

TrainingModel loadTrainingModel(const std::string& path) { return training(path, nullptr, nullptr); }
TrainingModel loadTrainingModel(const std::string& path, const Options& options) {
  return training(path, nullptr, &options);
}
TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module) {
  return training(path, &module, nullptr);
}
TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  return training(path, &module, &options);
}
InferenceModel loadInferenceModel(const std::string& path) { return inference(path, nullptr, nullptr); }
InferenceModel loadInferenceModel(const std::string& path, const Options& options) {
  return inference(path, nullptr, &options);
}
InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module) {
  return inference(path, &module, nullptr);
}
InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  return inference(path, &module, &options);
}
Options savedOptions(const std::string& path) {
  return OptionsAccess::of(options::savedOptions(files::readProgramFile(path).options));
}

CompiledModel::Core& CompiledModel::core() const {
  ABELE_REQUIRE(core_, E0705, {.what = "this model was moved from", .remedy = "use the object that it was moved to"});
  return *core_;
}
CompiledModel::Call CompiledModel::enter() const { return Call(core()); }
CompiledModel::CompiledModel(std::unique_ptr<Core> core) : core_(std::move(core)) {}
CompiledModel::CompiledModel(CompiledModel&&) noexcept = default;
CompiledModel& CompiledModel::operator=(CompiledModel&&) noexcept = default;
CompiledModel::~CompiledModel() = default;

std::vector<at::Tensor> CompiledModel::operator()(const std::vector<at::Tensor>& inputs) {
  return enter()->run(inputs, formOf(inputs));
}
detail::Flat CompiledModel::flatArguments(const std::vector<at::Tensor>& inputs) { return {inputs, formOf(inputs)}; }
std::vector<at::Tensor> CompiledModel::runFlat(const detail::Flat& inputs, std::string* form) {
  const Call call = enter();
  std::vector<at::Tensor> results = call->run(inputs.tensors, inputs.form);
  if (form) *form = call->resultForm();
  return results;
}
void CompiledModel::compile(const std::vector<at::Tensor>& inputs) { enter()->compile(inputs, formOf(inputs)); }
void CompiledModel::compileFlat(const detail::Flat& inputs) { enter()->compile(inputs.tensors, inputs.form); }
MemoryReport CompiledModel::memoryReport() const { return enter()->memoryReport(); }
void CompiledModel::compileAndExport(const std::string& path, const std::vector<at::Tensor>& inputs) {
  if (!isCompiled()) compile(inputs);
  save(path);
}
void CompiledModel::loadExecutable(const std::string& path) { enter()->load(path); }
bool CompiledModel::isCompiled() const { return core().isCompiled(); }
const Options& CompiledModel::options() const { return core().options(); }
void CompiledModel::copyWeightsToHost() { enter()->download(); }
bool CompiledModel::copyWeightsToHostIfNeeded() { return enter()->pullIfStale(); }
void CompiledModel::copyWeightsToDevice() { enter()->upload(); }
void CompiledModel::copyNamedBuffersToDevice() { enter()->uploadBuffers(); }
std::map<std::string, at::Tensor> CompiledModel::stateDict() { return enter()->stateDict(); }
void CompiledModel::loadStateDict(const std::map<std::string, at::Tensor>& state) { enter()->loadStateDict(state); }
bool CompiledModel::isAttachedToDevice() const { return core().isAttached(); }
void CompiledModel::attachToDevice() { enter()->attach(); }
void CompiledModel::detachFromDevice() { enter()->detach(); }
at::Tensor CompiledModel::rngState() const { return enter()->compiled("rngState()").rngState(); }
void CompiledModel::setRngState(const at::Tensor& state) { enter()->setRngState(state); }
const std::vector<std::string>& CompiledModel::getTensorNames() const {
  return enter()->compiled("getTensorNames()").tensorNames();
}
at::Tensor CompiledModel::getAnchoredTensor(const std::string& short_name) const {
  return enter()->compiled("getAnchoredTensor()").anchor(short_name);
}
ModelTimes CompiledModel::getPerfCounters() const {
  session::PerfCounters counters = enter()->compiled("getPerfCounters()").perfCounters();
  return {std::move(counters.input), std::move(counters.input_complete), std::move(counters.output),
          std::move(counters.output_complete)};
}
Latency CompiledModel::getLatency() const { return latencyOf(enter()->compiled("getLatency()"), session::Way::kAll); }
Latency CompiledModel::getHostIpuLatency() const {
  return latencyOf(enter()->compiled("getHostIpuLatency()"), session::Way::kHostToDevice);
}
Latency CompiledModel::getComputeLatency() const {
  return latencyOf(enter()->compiled("getComputeLatency()"), session::Way::kCompute);
}
Latency CompiledModel::getIpuHostLatency() const {
  return latencyOf(enter()->compiled("getIpuHostLatency()"), session::Way::kDeviceToHost);
}
int64_t CompiledModel::cycleCount() const { return enter()->cycles(); }
std::string CompiledModel::report() const { return enter()->report(); }
std::string CompiledModel::costs() const { return enter()->compiled("costs()").costs(); }
std::string CompiledModel::explain() const { return enter()->compiled("explain()").explain(); }
std::string CompiledModel::graphText() const { return enter()->graphText(); }
std::string CompiledModel::planText() const { return enter()->planText(); }
std::string CompiledModel::executableText() const { return enter()->executableText(); }
int64_t CompiledModel::numPrograms() const { return static_cast<int64_t>(enter()->numPrograms()); }
std::string explain(const CompiledModel& model) { return model.explain(); }
Verification detail::verify(CompiledModel& model, const std::vector<Flat>& batches) {
  return model.verifyFlat(batches);
}
Verification CompiledModel::verifyFlat(const std::vector<detail::Flat>& batches) { return enter()->verify(batches); }
void CompiledModel::save(const std::string& path, const SaveOptions& what) { enter()->save(path, what); }
void CompiledModel::trace(const std::string& path, int64_t steps) { enter()->trace(path, steps); }
void CompiledModel::destroy() { enter()->destroy(); }
void CompiledModel::setInterrupt(std::function<bool()> poll) { enter()->setInterrupt(std::move(poll)); }

void TrainingModel::replicaGrouping(const std::string& parameter, CommGroupType type, int64_t shards,
                                    VariableRetrievalMode mode) {
  enter()->group(parameter, type, shards, mode);
}
const optim::Optimizer& TrainingModel::optimizer() const { return enter()->optimizer(); }
void TrainingModel::setOptimizer(const optim::Optimizer& optimizer) { enter()->setOptimizer(optimizer); }
void TrainingModel::setOptimizer(const torch::optim::Optimizer& optimizer) {
  const torch::nn::Module& module = enter()->moduleOfOptimizer();
  setOptimizer(optim::fromTorch(optimizer, module));
}
void TrainingModel::setOptimizer(torch::optim::Optimizer& optimizer) {
  const torch::nn::Module& module = enter()->moduleOfOptimizer();
  setOptimizer(optim::fromTorch(optimizer, module));
}
std::map<std::string, at::Tensor> TrainingModel::optimizerState() const {
  return enter()->updating("optimizerState()").optimizerState();
}
double TrainingModel::lossScale() const { return enter()->compiled("lossScale()").lossScale(); }
void TrainingModel::setOptimizerState(const std::map<std::string, at::Tensor>& state) {
  enter()->updating("setOptimizerState()").setOptimizerState(state);
}

}  // namespace abele
