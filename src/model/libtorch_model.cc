#include "model/libtorch_model.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "abele/version.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/joined.h"
#include "base/log.h"
#include "compile/compiled_program.h"
#include "compile/from_options.h"
#include "compile/tensors.h"
#include "exe/executable.h"
#include "ir/text.h"
#include "model/libtorch_module.h"
#include "modules/first_weights.h"
#include "modules/weight_targets.h"
#include "optimizer/optimizer.h"
#include "optimizer/optimizer_numbers.h"
#include "options/run_time.h"
#include "plan/plan.h"

namespace abele::model {
namespace {

std::string shapeOf(const at::Tensor& tensor) {
  return contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec()).str();
}

}  // namespace

std::shared_ptr<Sharing> sharingOf(const torch::nn::Module* module) {
  using Shared = std::map<const torch::nn::Module*, std::weak_ptr<Sharing>>;
  static ProcessMutex& mu = *new ProcessMutex;
  static Shared& all = *new Shared;  // never freed, because models of static lifetime may outlive it
  std::lock_guard lock(mu);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  if (!module) return std::make_shared<Sharing>();
  std::shared_ptr<Sharing> sharing = all[module].lock();
  if (!sharing) all[module] = sharing = std::make_shared<Sharing>();
  return sharing;
}

LentModel::LentModel(Model& model)
    : returned_(std::make_shared<std::latch>(1)),
      model_(&model, [returned = returned_](Model* /*lent*/) { returned->count_down(); }) {}

LentModel::~LentModel() {
  model_.reset();
  if (home_.isHere()) returned_->wait();
}

LibTorchModel::LibTorchModel(LibTorchModule* own, const Options& options, const optim::Optimizer* optimizer)
    : Model(std::unique_ptr<ModuleSource>(own),
            {.training = optimizer != nullptr,
             .connection = options.connection_type(),
             .recompile_limit = options.recompile_limit()},
            sharingOf(own->module())),
      user_options_(options),
      lent_(*this) {
  own->setModel(lent_.model());
  if (optimizer) setOptimizer(*optimizer);
}

LibTorchModel::LibTorchModel(torch::nn::Module* module, detail::StructuredForward forward, const Options& options,
                             const optim::Optimizer* optimizer, std::string line)
    : LibTorchModel(new LibTorchModule(module, std::move(forward), std::move(line),
                                       compile::programOptions(OptionsAccess::values(options), optimizer != nullptr)),
                    options, optimizer) {
  const session::Session check(own().options());  // refuses wrong options before anything is compiled
  options.freeze();
  user_options_.freeze();
  if (OptionsAccess::values(options).find("capture_as_compiling"))
    log::warn("option captureAsCompiling has no effect in C++: only Python asks torch.compiler.is_compiling()");
  if (!rules().training) return;
  const Turns::Turn turn = moduleTurn();
  claimTraining();
}

LibTorchModel::LibTorchModel(const std::string& path, torch::nn::Module* module, const Options* options,
                             const optim::Optimizer* optimizer)
    : LibTorchModel(read(path, /*training=*/optimizer != nullptr), module, options, optimizer) {}

LibTorchModel::LibTorchModel(Saved saved, torch::nn::Module* module, const Options* options,
                             const optim::Optimizer* optimizer)
    : LibTorchModel(module, nullptr, optionsOf(saved, options), optimizer) {
  if (options) options->freeze();
  load(std::move(saved));
}

LibTorchModule& LibTorchModel::own() const { return static_cast<LibTorchModule&>(source()); }
const torch::nn::Module* LibTorchModel::module() const { return own().module(); }

std::vector<at::Tensor> LibTorchModel::run(const std::vector<at::Tensor>& inputs, const std::string& form) {
  std::vector<at::Tensor> results = Model::run(inputs, form);
  if (!isOnHost()) return results;
  const auto refuse = [](std::string found) {
    throwUser(ErrorCode::E0706, {.what = "step() of the optimizer on the host failed",
                                 .found = std::move(found),
                                 .remedy = "what it wrote before stays, and the model can be called again"});
  };
  updateOnHost([&] {
    try {
      optimizer().step_on_host();
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      refuse(error.what_without_backtrace());
    } catch (const std::exception& error) {
      refuse(error.what());
    } catch (...) {
      refuse("an object that is not a std::exception");
    }
  });
  return results;
}

// --- weights ---------------------------------------------------------------------------------------------------------
void LibTorchModel::uploadBuffers() {
  const Turns::Turn turn = moduleTurn();
  session::Session& session = compiled("copyNamedBuffersToDevice()");
  const std::optional<Setting> listed = user_options_.Popart().get("updatableNamedBuffers");
  const auto* names = listed ? std::get_if<std::vector<std::string>>(&*listed) : nullptr;
  ABELE_REQUIRE(names && !names->empty(), E0702,
                {.what = "no buffers are listed", .remedy = "Options::updatableNamedBuffers({...})"});
  session.copyBuffersToDevice(*names);
}

std::map<std::string, at::Tensor> LibTorchModel::stateDict() {
  const Turns::Turn turn = moduleTurn();
  requireComplete("stateDict()", "saveWeights(folder, model) or saveCheckpoint(folder, model, step), called by all");
  return tensorsByName();
}

std::map<std::string, at::Tensor> LibTorchModel::tensorsByName() {
  const Turns::Turn turn = moduleTurn();
  pullFromTrainers();
  pullIfStale();
  std::map<std::string, at::Tensor> state;
  for (const modules::NamedTensor& t : program() ? program()->tensors : own().tensors())
    state.emplace(t.name, t.tensor);
  return state;
}

void LibTorchModel::requireFits(const session::StoredTensors& state) {
  const std::map<std::string, at::Tensor> own = tensorsByName();
  for (const auto& [name, tensor] : state) {
    const auto it = own.find(name);
    ABELE_REQUIRE(it != own.end() && it->second.sizes() == at::IntArrayRef(tensor.type.sizes), E0708,
                  {.what = cat("the model does not fit the state's ", name),
                   .found = tensor.type.str(),
                   .expected = it == own.end() ? "no such tensor" : shapeOf(it->second)});
    compile::requireMemory(it->second, name);
  }
  for (const auto& [name, tensor] : own)
    ABELE_REQUIRE(state.contains(name), E0708, {.what = cat("the state has no ", name), .expected = shapeOf(tensor)});
}

void LibTorchModel::loadStateDict(const std::map<std::string, at::Tensor>& state) {
  const Turns::Turn turn = moduleTurn();
  session::StoredTensors given;
  for (const auto& [name, tensor] : state) {
    compile::requireMemory(tensor, cat("the state's ", name));
    given.emplace(name, session::stored(tensor));
  }
  requireFits(given);
  const std::map<std::string, at::Tensor> own = tensorsByName();
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own)
    ABELE_REQUIRE(!tensor.is_meta(), E0708,
                  {.what = cat(name, " is on the meta device, and has no memory to load into"),
                   .remedy = "saveWeights() or saveTensors() in a file, and loadWeights(path, model)"});
  for (const auto& [name, tensor] : state) own.at(name).copy_(tensor);
  ++sharing().host_version;
  if (program() && isAttached()) upload();
}

void LibTorchModel::loadWeights(const std::shared_ptr<const files::WeightFiles>& files) {
  ABELE_REQUIRE(own().module(), E0705,
                {.what = "loadWeights() of a model without a module",
                 .remedy = "load the file with a module, or use loadStateDict()"});
  Model::loadWeights(files, modules::weightTargetsOf(*own().module()));
}

void LibTorchModel::initWeights(uint64_t seed, InitModule init) {
  const Turns::Turn turn = moduleTurn();
  torch::nn::Module* const module = own().module();
  ABELE_REQUIRE(module, E0705,
                {.what = "initWeights() of a model without a module",
                 .remedy = "load the file with a module, whose weights can be drawn"});
  if (!init) modules::requireFirstWeights(*module);
  const std::vector<modules::NamedTensor> tensors = own().tensors();
  if (std::ranges::any_of(tensors, [](const modules::NamedTensor& each) { return each.tensor.is_meta(); })) {
    fillMetaTensors([module, seed, init = std::move(init)](const std::vector<modules::NamedTensor>& needed) {
      modules::drawFirstWeights(*module, seed, init, &needed);
    });
    return;
  }
  pullFromTrainers();
  pullIfStale();
  modules::drawFirstWeights(*module, seed, init, nullptr);
  ++sharing().host_version;
  if (program() && isAttached()) upload();
}

// --- optimizer, groups, times ----------------------------------------------------------------------------------------
void LibTorchModel::setOptimizer(const optim::Optimizer& optimizer) {
  if (optimizer.step_on_host) requireHostUpdates();
  Model::setOptimizer(std::make_shared<LibTorchOptimizer>(optimizer));
}

const optim::Optimizer& LibTorchModel::optimizer() const {
  return static_cast<const LibTorchOptimizer&>(*Model::optimizer()).value;
}

const torch::nn::Module& LibTorchModel::moduleOfOptimizer() const {
  ABELE_REQUIRE(module(), E0706,
                {.what = "an optimizer of LibTorch for a model that was loaded without a module",
                 .remedy = "pass one of abele::optim, or load the model with its module"});
  return *module();
}

void LibTorchModel::requireUpdatesOfDevices(const char* call) const {
  ABELE_REQUIRE(!isOnHost(), E0706,
                {.what = cat(call, " of a model whose optimizer updates on the host, where its state is, too"),
                 .remedy = "saveWeights(folder, model), and torch::save(optimizer, path) or a save of your own"});
}

session::Session& LibTorchModel::updating(const char* call) {
  requireUpdatesOfDevices(call);
  return compiled(call);
}

void LibTorchModel::group(const std::string& parameter, CommGroupType type, int64_t shards,
                          VariableRetrievalMode mode) {
  ABELE_REQUIRE(!program(), E0705,
                {.what = cat("replicaGrouping of ", parameter, " after the model was compiled"),
                 .remedy = "call it before the model, or destroy() the model first"});
  std::vector<compile::ReplicaGrouping>& groupings = own().program_options.groupings;
  std::erase_if(groupings, [&](const auto& grouping) { return grouping.parameter == parameter; });
  groupings.push_back({parameter, compile::commGroup(type), shards, mode == VariableRetrievalMode::kAllReplicas});
}

int64_t LibTorchModel::cycles() {
  const std::optional<Setting> counts = user_options_.Popart().get("instrumentWithHardwareCycleCounter");
  ABELE_REQUIRE(counts && std::get_if<bool>(&*counts) && std::get<bool>(*counts), E0702,
                {.what = "cycle counting is disabled", .remedy = "Options::logCycleCount(true)"});
  const int64_t cycles = compiled("cycleCount()").cycles();
  ABELE_REQUIRE(cycles != 0, E0705, {.what = "cycleCount() before the first call", .remedy = "call the model first"});
  return cycles;
}

void LibTorchModel::setRngState(const at::Tensor& state) { files::setRandomState(compiled("setRngState()"), state); }

std::string LibTorchModel::graphText() { return ir::print(compiled("graphText()").graph()); }
std::string LibTorchModel::planText() { return plan::print(compiled("planText()").plan()); }
std::string LibTorchModel::executableText() { return exe::print(compiled("executableText()").executable()); }

MemoryReport LibTorchModel::memoryReport() {
  return report::publicMemory(compiled("memoryReport()").memoryReport(), own().program_options);
}

// --- checkpoints -----------------------------------------------------------------------------------------------------
constexpr const char* kNumbers = "optimizer";  // name of the checkpoint's text for the optimizer's numbers

files::Checkpoint LibTorchModel::checkpoint() {
  updating("saveCheckpoint()");
  files::Checkpoint checkpoint = Model::checkpoint(tensorsByName());
  checkpoint.texts.emplace(kNumbers, optimizer::textOfNumbers(optimizerSpec()));
  return checkpoint;
}

void LibTorchModel::goOnFrom(const files::Checkpoint& checkpoint) {
  requireUpdatesOfDevices("loadCheckpoint()");
  const Turns::Turn turn = moduleTurn();
  requireFits(checkpoint.weights);
  const compile::OptimizerSpec now = optimizerSpec();
  const auto numbers = checkpoint.texts.find(kNumbers);
  const compile::OptimizerSpec next =
      numbers == checkpoint.texts.end() ? now : optimizer::withNumbers(now, numbers->second);
  requireWhole(checkpoint);
  Model::goOnFrom(checkpoint.state);
  if (next.groups != now.groups || next.loss_scaling != now.loss_scaling)
    Model::setOptimizer(std::make_shared<LibTorchOptimizer>(optimizer::optimizerOf(next)));
  Model::takeWeights(checkpoint.weights);
}

// --- files -----------------------------------------------------------------------------------------------------------
void LibTorchModel::save(const std::string& path, const SaveOptions& what) {
  updating("save()");
  const std::string file = files::fileToSave(path);
  if (file != path) log::warn("save(): ", path, " is a folder, the file is ", file);
  Model::save(file, {.version = cat("abele ", version()),
                     .options = options::textOfSaved(OptionsAccess::values(user_options_)),
                     .metadata = {},
                     .form = program()->form,
                     .result_form = resultForm(),
                     .with_model = what.export_model,
                     .with_random_state = what.save_rng_state});
}

LibTorchModel::Saved LibTorchModel::read(const std::string& path, bool training) {
  Saved saved{.path = path, .file = files::readProgramFile(path), .program = {}};
  saved.program = files::ofFile(path, [&] { return compile::decodeProgram(saved.file.program); });
  const exe::Executable& executable = saved.program.executable;
  const bool trains = executable.training;
  const auto kind = [](bool is_training) { return is_training ? "a training program" : "an inference program"; };
  ABELE_REQUIRE(trains == training, E0712,
                {.what = cat("the file holds ", kind(trains)),
                 .at = path,
                 .expected = kind(training),
                 .remedy = "loadTrainingModel for training, loadInferenceModel for inference"});
  const bool updates = saved.program.optimizer.rules.kind != passes::OptimizerRules::Kind::kNone;
  ABELE_REQUIRE(!trains || updates || exe::externalsOf(executable, exe::ExternalKind::kAccumulator).empty(), E0706,
                {.what = "the program of the file was trained by an optimizer on the host, which it does not hold",
                 .at = path,
                 .remedy = "make the model with its forward and its optimizer, and load the weights"});
  return saved;
}

Options LibTorchModel::optionsOf(const Saved& saved, const Options* chosen) {
  const Options::Values compiled = options::savedOptions(saved.file.options);
  const Options::Values asked = chosen ? OptionsAccess::values(*chosen) : Options::Values();
  Options::Values values = chosen ? asked : compiled;
  // A file does not know the index and number of processes, but it knows the number of devices of each.
  for (const options::OptionKey& key : options::optionKeys()) {
    const bool is_here = key.group == "Distributed" && (chosen || !options::isOfProgram(key.key));
    if (const options::OptionValue* here = is_here ? asked.find(key.group, key.key) : nullptr)
      values.set(key.group, key.key, *here);
  }
  const std::vector<std::string> kept = options::chosenInVain(options::keepCompiled(values, compiled), asked);
  if (!kept.empty()) log::warn("load: ignored, since the program is compiled already: ", joined(kept));
  return OptionsAccess::of(values);
}

void LibTorchModel::load(const std::string& path) {
  ABELE_REQUIRE(!program(), E0705,
                {.what = "loadExecutable() of a compiled model", .remedy = "destroy() the model first"});
  requireUpdatesOfDevices("loadExecutable()");
  const Turns::Turn turn = moduleTurn();
  Saved saved = read(path, rules().training);
  Options options = optionsOf(saved, &user_options_);
  compile::ProgramOptions program_options = compile::programOptions(OptionsAccess::values(options), rules().training);
  program_options.groupings = own().program_options.groupings;
  const auto swapOptions = [&] {
    std::swap(own().program_options, program_options);
    std::swap(user_options_, options);
    user_options_.freeze();
  };
  swapOptions();
  try {
    load(std::move(saved));
  } catch (...) {
    swapOptions();
    throw;
  }
}

void LibTorchModel::load(Saved saved) {
  const Turns::Turn turn = moduleTurn();
  const files::ProgramFile& file = saved.file;
  ABELE_REQUIRE(file.has_model || own().module(), E0712,
                {.what = "the file holds a program without weights",
                 .at = saved.path,
                 .remedy = "pass the module, or save with the model (export_model)"});
  const compile::OptimizerSpec optimizer = saved.program.optimizer;
  const files::ProgramCounts counts = files::countsOf(saved.program.executable);
  compile::ProgramOptions& options = own().program_options;
  options.device_iterations = counts.device_iterations;
  options.gradient_accumulation = counts.gradient_accumulation;
  options.replicas = counts.replicas;
  options.input_group_size = counts.input_group_size;
  options.input_grouping = counts.input_grouping;
  std::optional<files::Checkpoint> parts;
  if (!file.parts.empty()) parts = files::readCheckpoint(files::partsOf(saved.path, file));
  std::vector<modules::NamedTensor> tensors = parts ? takeParts(*parts, saved.program.executable) : tensorsFor(file);
  for (modules::NamedTensor& t : tensors) t.trains = optimizer.rules.group_of.contains(t.name);
  adopt({.program = std::move(saved.program),
         .form = file.form,
         .captured = {.result_form = file.result_form, .structure = nullptr},
         .tensors = std::move(tensors),
         .is_final = true,
         .keeps_optimizer = true});
  try {
    resume(file, parts ? &*parts : nullptr);
  } catch (...) {
    destroy();
    throw;
  }
  takeWeights(file);  // last, so that a refusal leaves the module unchanged
  if (rules().training && optimizer.rules.kind != passes::OptimizerRules::Kind::kNone)
    useOptimizer(std::make_shared<LibTorchOptimizer>(optimizer::optimizerOf(optimizer)));
}

std::vector<modules::NamedTensor> LibTorchModel::takeParts(const files::Checkpoint& parts,
                                                           const exe::Executable& executable) {
  std::vector<modules::NamedTensor> tensors = own().module() ? own().tensors() : tensorsOfParts(executable, parts);
  if (own().module()) requireFits(parts.weights);
  requireWhole(parts);
  Model::takeWeights(parts.weights, tensors);
  return tensors;
}

std::vector<modules::NamedTensor> LibTorchModel::tensorsFor(const files::ProgramFile& file) {
  std::vector<modules::NamedTensor> tensors = own().tensors();
  for (const files::SavedTensor& saved : file.tensors) {
    if (!own().module()) {
      tensors.push_back({saved.name, saved.tensor, saved.is_parameter});
      continue;
    }
    const auto found = std::ranges::find(tensors, saved.name, &modules::NamedTensor::name);
    const bool fits = found != tensors.end() && found->tensor.sizes() == saved.tensor.sizes() &&
                      found->tensor.scalar_type() == saved.tensor.scalar_type();
    ABELE_REQUIRE(fits, E0712,
                  {.what = cat("the module does not fit the file's ", saved.name),
                   .found = found == tensors.end() ? "no such tensor" : shapeOf(found->tensor),
                   .expected = shapeOf(saved.tensor),
                   .remedy = "pass a module of the class that was saved, or none"});
    compile::requireMemory(found->tensor, found->name);
  }
  return tensors;
}

void LibTorchModel::takeWeights(const files::ProgramFile& file) {
  if (!own().module() || file.tensors.empty()) return;
  session::StoredTensors weights;
  for (const files::SavedTensor& saved : file.tensors) weights.emplace(saved.name, session::stored(saved.tensor));
  std::vector<modules::NamedTensor> tensors = own().tensors();
  std::erase_if(tensors, [&](const modules::NamedTensor& each) { return !weights.contains(each.name); });
  Model::takeWeights(weights, tensors);
}

}  // namespace abele::model
