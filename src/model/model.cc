#include "model/model.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "abele/version.h"
#include "base/error.h"
#include "base/log.h"
#include "compile/compiled_program.h"
#include "compile/from_options.h"
#include "compile/tensors.h"
#include "exe/executable.h"
#include "ir/text.h"
#include "model/lines.h"
#include "model/placed_modules.h"
#include "model/trained_parameters.h"
#include "plan/plan.h"

namespace abele::host {
namespace {

std::string shapeOf(const at::Tensor& tensor) {
  return contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec()).str();
}

std::vector<capture::ModelTensor> modelOf(std::vector<NamedTensor>& tensors) {
  std::vector<capture::ModelTensor> model;
  for (NamedTensor& t : tensors) model.push_back({t.name, &t.tensor, t.is_parameter});
  return model;
}

/// Would forward see the same? Strides of dimensions of one element do not matter.
bool isSameKind(const Type& compiled, const at::Tensor& tensor) {
  if (!tensor.defined() || static_cast<DType>(tensor.scalar_type()) != compiled.dtype ||
      tensor.sizes() != at::IntArrayRef(compiled.sizes))
    return false;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1 && tensor.stride(d) != compiled.strides[static_cast<size_t>(d)]) return false;
  return true;
}

[[noreturn]] void refuseForm(const std::string& found, const std::string& expected) {
  throwUser(
      ErrorCode::E0704,
      {.what = "the arguments are built otherwise than those that the model was compiled for",
       .found = formInWords(found),
       .expected = formInWords(expected),
       .remedy = "make another model for them, or destroy() this one first; in brackets is a tuple, struct, array "
                 "or vector, in braces a map by key; nothing is an empty optional"});
}

/// The tensors of a call in a program's order; nothing where it has another structure.
std::optional<std::vector<at::Tensor>> inOrder(const std::vector<at::Tensor>& inputs, const std::string& form,
                                               const std::string& program_form, bool takes_tensors_alone) {
  const std::optional<std::vector<size_t>> order = tensorOrder(program_form, withoutTrailingNothing(form));
  if (!order) {
    const bool only_tensors = form.find_first_not_of('t') == std::string::npos;
    return takes_tensors_alone && only_tensors ? std::optional(inputs) : std::nullopt;
  }
  std::vector<at::Tensor> ordered;
  for (const size_t i : *order) ordered.push_back(inputs.at(i));
  return ordered;
}

}  // namespace

std::shared_ptr<Sharing> sharingOf(const torch::nn::Module* module) {
  static std::mutex mu;
  static std::map<const torch::nn::Module*, std::weak_ptr<Sharing>> all;
  std::lock_guard lock(mu);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  if (!module) return std::make_shared<Sharing>();
  std::shared_ptr<Sharing> sharing = all[module].lock();
  if (!sharing) all[module] = sharing = std::make_shared<Sharing>();
  return sharing;
}

Model::Model(torch::nn::Module* module, detail::StructuredForward forward, const Options& options,
             const optim::Optimizer* optimizer, std::string line)
    : user_options_(options),
      optimizer_(optimizer ? std::make_unique<optim::Optimizer>(*optimizer) : nullptr),
      module_(module),
      owner_(module ? ownerOf(*module) : nullptr),
      forward_(std::move(forward)),
      line_(std::move(line)),
      options_(programOptions(OptionsAccess::values(options), optimizer != nullptr)),
      sharing_(sharingOf(module)) {
  options_.weights_owner = this;
  const Session check(options_);  // refuses options before anything is compiled
  options.freeze();
  user_options_.freeze();
  if (!options_.training) return;
  const Turns::Turn turn = moduleTurn();
  claimTraining();
}

Model::Model(const std::string& path, torch::nn::Module* module, const Options& options,
             const optim::Optimizer* optimizer)
    : Model(module, nullptr, options, optimizer) {
  load(path);
}

Model::~Model() {
  try {
    const Turns::Turn turn = options_.training ? moduleTurn() : Turns::Turn();
    pullBeforeTheEnd();
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  } catch (const std::exception& error) {
    log::warn("weights of a training model were not copied back: ", error.what());
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  }
  releaseParameters(this);
}

// --- programs --------------------------------------------------------------------------------------------------------
Model::Found Model::find(const std::vector<at::Tensor>& inputs, const std::string& form) {
  for (const std::unique_ptr<ModelProgram>& program : programs_) {
    std::optional<std::vector<at::Tensor>> ordered =
        inOrder(inputs, form, program->form, /*takes_tensors_alone=*/program->is_loaded);
    // Values and structures stand in the code that calls: others are a mistake more often than a wish.
    if (!ordered) refuseForm(form, program->form);
    // A loaded program has no forward to compile again; its session says what it was compiled for.
    if (program->is_loaded || std::ranges::equal(program->inputs, *ordered, isSameKind))
      return {program.get(), *std::move(ordered)};
  }
  return {};
}

std::unique_ptr<Model::ModelProgram> Model::compileProgram(const std::vector<at::Tensor>& inputs,
                                                           const std::string& form) {
  ABELE_REQUIRE(
      forward_, E0705,
      {.what = "a loaded model that was destroyed has no forward to compile", .remedy = "load the file again"});
  const Turns::Turn turn = moduleTurn();  // captures lock the memory of the module
  if (options_.training) {
    claimTraining();
    pullIfStale();
  }
  pullFromTrainer();
  auto next = std::make_unique<ModelProgram>();
  next->tensors = moduleTensors();
  if (options_.training) claimParameters(this, next->tensors);
  const std::string own_form = withoutTrailingNothing(form);
  PlacedModules placed(module_, next->tensors);
  Program program;
  program.forward = [&](const std::vector<at::Tensor>& tensors) {
    placed.begin();
    detail::Flat results = forward_(tensors, form);
    next->result_form = std::move(results.form);
    return std::move(results.tensors);
  };
  const LineScope line(line_);
  program.source_location = currentLine;
  program.checks_comparisons = true;
  program.poll = poll_;
  program.reads_model = placed.reader();
  program.model = modelOf(next->tensors);
  next->session = std::make_unique<Session>(options_);
  {
    const CompileHooks hooks;
    next->session->compile(program, inputs, optimizer_ ? optimizerSpec(*optimizer_, next->tensors) : OptimizerSpec());
  }
  next->form = own_form;
  for (const at::Tensor& input : inputs) next->inputs.push_back(typeOf(input));
  startProfile(*next);
  return next;
}

void Model::startProfile(ModelProgram& program) const {
  if (!options_.profile.path.empty()) program.profile.emplace(options_.profile, *program.session);
}

void Model::use(ModelProgram& next) {
  if (program_ == &next) return;
  if (program_) {
    // The module is the way from one program's devices to the other's.
    const Turns::Turn turn = moduleTurn();
    if (options_.training) {
      if (stale_) download();
      next.session->setOptimizerState(program_->session->optimizerState());
      next.session->setOptimizer(optimizerSpec(*optimizer_, next.tensors));
    }
    next.session->copyWeightsToDevice();
    next.session->setRngState(program_->session->rngState());
    uploaded_version_ = sharing_->host_version;
  }
  program_ = &next;
}

void Model::compile(const std::vector<at::Tensor>& inputs, const std::string& form) {
  const Found found = find(inputs, form);
  if (!found.program) return add(inputs, form);
  log::warn("compile() has no effect: the model is compiled for these inputs; destroy() it first to compile again");
  use(*found.program);
}

void Model::add(const std::vector<at::Tensor>& inputs, const std::string& form) {
  std::unique_ptr<ModelProgram> next = compileProgram(inputs, form);
  const bool is_first = programs_.empty();
  programs_.push_back(std::move(next));
  if (!is_first) log::info("program ", programs_.size(), " of the model, for other inputs than before");
  try {
    use(*programs_.back());
  } catch (...) {
    programs_.pop_back();
    throw;
  }
  is_compiled_ = true;
  if (!is_first) return;
  attached_ = user_options_.connection_type() != ConnectionType::kNever;
  uploaded_version_ = sharing_->host_version;
}

std::vector<at::Tensor> Model::run(const std::vector<at::Tensor>& inputs, const std::string& form) {
  requireDevice();
  Found found = find(inputs, form);
  if (found.program) {
    use(*found.program);
  } else {
    add(inputs, form);
    found.inputs = inputs;  // their order is the new program's
  }
  if (!attached_) attach();
  if (!options_.training) {
    const Turns::Turn turn = moduleTurn();
    pullFromTrainer();
    if (uploaded_version_ != sharing_->host_version) upload();
  }
  if (options_.training) stale_ = true;
  std::vector<at::Tensor> results = program_->session->run(found.inputs, poll_);
  if (program_->profile) program_->profile->noteRun(*program_->session);
  return results;
}

void Model::destroy() {
  const Turns::Turn turn = moduleTurn();
  pullBeforeTheEnd();
  program_ = nullptr;
  programs_.clear();
  is_compiled_ = false;
  stale_ = false;
  attached_ = false;
  if (sharing_->trainer == this) sharing_->trainer = nullptr;
  releaseParameters(this);
}

Session& Model::compiled(const char* call) {
  ABELE_REQUIRE(
      program_, E0705,
      {.what = cat(call, " needs a compiled model"), .remedy = "call the model once, or compile() it, first"});
  return *program_->session;
}

// --- weights ---------------------------------------------------------------------------------------------------------
void Model::download() {
  const Turns::Turn turn = moduleTurn();
  compiled("copyWeightsToHost()").copyWeightsToHost();
  stale_ = false;
  uploaded_version_ = ++sharing_->host_version;
}

void Model::upload() {
  const Turns::Turn turn = moduleTurn();
  compiled("copyWeightsToDevice()").copyWeightsToDevice();
  stale_ = false;
  uploaded_version_ = sharing_->host_version;
}

bool Model::pullIfStale() {
  if (!program_ || !stale_) return false;
  download();
  return true;
}

void Model::uploadBuffers() {
  const Turns::Turn turn = moduleTurn();
  Session& session = compiled("copyNamedBuffersToDevice()");
  const std::optional<Setting> listed = user_options_.Popart().get("updatableNamedBuffers");
  const auto* names = listed ? std::get_if<std::vector<std::string>>(&*listed) : nullptr;
  ABELE_REQUIRE(names && !names->empty(), E0702,
                {.what = "no buffers are listed", .remedy = "Options::updatableNamedBuffers({...})"});
  session.copyBuffersToDevice(*names);
}

std::vector<NamedTensor> Model::moduleTensors() const {
  return module_ ? tensorsOf(*module_) : std::vector<NamedTensor>();
}

std::map<std::string, at::Tensor> Model::stateDict() {
  const Turns::Turn turn = moduleTurn();
  pullFromTrainer();
  pullIfStale();
  std::map<std::string, at::Tensor> state;
  for (const NamedTensor& t : program_ ? program_->tensors : moduleTensors()) state.emplace(t.name, t.tensor);
  return state;
}

void Model::loadStateDict(const std::map<std::string, at::Tensor>& state) {
  const Turns::Turn turn = moduleTurn();
  const std::map<std::string, at::Tensor> own = stateDict();
  for (const auto& [name, tensor] : state) {
    const auto it = own.find(name);
    ABELE_REQUIRE(it != own.end() && it->second.sizes() == tensor.sizes(), E0708,
                  {.what = cat("the model does not fit the state's ", name),
                   .found = shapeOf(tensor),
                   .expected = it == own.end() ? "no such tensor" : shapeOf(it->second)});
    requireMemory(tensor, cat("the state's ", name));
    requireMemory(it->second, name);
  }
  for (const auto& [name, tensor] : own)
    ABELE_REQUIRE(state.contains(name), E0708, {.what = cat("the state has no ", name), .expected = shapeOf(tensor)});
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state) own.at(name).copy_(tensor);
  ++sharing_->host_version;
  if (program_ && attached_) upload();
}

void Model::requireDevice() const {
  ABELE_REQUIRE(user_options_.connection_type() != ConnectionType::kNever, E0702,
                {.what = "the connection type is Never: the model compiles, and does not run",
                 .remedy = "connectionType(ConnectionType::kAlways) or kOnDemand"});
}

void Model::attach() {
  compiled("attachToDevice()");
  ABELE_REQUIRE(!attached_, E0705, {.what = "the model is attached already"});
  requireDevice();
  upload();
  attached_ = true;
}

void Model::detach() {
  compiled("detachFromDevice()");
  ABELE_REQUIRE(attached_, E0705, {.what = "the model is not attached"});
  pullIfStale();
  attached_ = false;
}

Turns::Turn Model::moduleTurn() {
  return sharing_->turns.isMine() ? Turns::Turn() : sharing_->turns.take("the training model of the module");
}

void Model::pullBeforeTheEnd() {
  if (program_ && !program_->session->isOfParent()) pullIfStale();
}

void Model::claimTraining() {
  ABELE_REQUIRE(!sharing_->trainer || sharing_->trainer == this, E0709,
                {.what = "the module is already wrapped for training",
                 .found = "a live training model of it",
                 .expected = "one training model per module",
                 .remedy = "destroy() the other training model first"});
  sharing_->trainer = this;
}

void Model::pullFromTrainer() {
  if (sharing_->trainer && sharing_->trainer != this) sharing_->trainer->pullIfStale();
}

// --- optimizer, groups, times ----------------------------------------------------------------------------------------
void Model::setOptimizer(const optim::Optimizer& optimizer) {
  if (program_) {
    requireSameConstants(*optimizer_, optimizer);
    program_->session->setOptimizer(optimizerSpec(optimizer, program_->tensors));
  }
  *optimizer_ = optimizer;
}

void Model::group(const std::string& parameter, CommGroupType type, int64_t shards, VariableRetrievalMode mode) {
  ABELE_REQUIRE(!program_, E0705,
                {.what = cat("replicaGrouping of ", parameter, " after the model was compiled"),
                 .remedy = "call it before the model, or destroy() the model first"});
  std::erase_if(options_.groupings, [&](const auto& grouping) { return grouping.parameter == parameter; });
  options_.groupings.push_back({parameter, commGroup(type), shards, mode == VariableRetrievalMode::kAllReplicas});
}

int64_t Model::cycles() {
  const std::optional<Setting> counts = user_options_.Popart().get("instrumentWithHardwareCycleCounter");
  ABELE_REQUIRE(counts && std::get_if<bool>(&*counts) && std::get<bool>(*counts), E0702,
                {.what = "cycle counting is disabled", .remedy = "Options::logCycleCount(true)"});
  const int64_t cycles = compiled("cycleCount()").cycles();
  ABELE_REQUIRE(cycles != 0, E0705, {.what = "cycleCount() before the first call", .remedy = "call the model first"});
  return cycles;
}

void Model::setRngState(const at::Tensor& state) {
  Session& session = compiled("setRngState()");
  const at::Tensor now = session.rngState();
  const auto refuse = [&] {
    throwUser(ErrorCode::E0708, {.what = "this is no state of a random stream",
                                 .found = state.defined() ? shapeOf(state) : "an undefined tensor",
                                 .expected = shapeOf(now),
                                 .remedy = "pass what rngState() returned"});
  };
  if (!state.defined() || state.scalar_type() != now.scalar_type()) refuse();
  try {
    session.setRngState(state);  // with or without a part for stochastic rounding
  } catch (const c10::Error&) {
    refuse();
  }
}

std::string Model::graphText() { return ir::print(compiled("graphText()").graph()); }
std::string Model::planText() { return plan::print(compiled("planText()").plan()); }
std::string Model::executableText() { return exe::print(compiled("executableText()").executable()); }

// --- files -----------------------------------------------------------------------------------------------------------
void Model::save(const std::string& path) {
  const Session& session = compiled("save()");
  const Turns::Turn turn = moduleTurn();
  pullIfStale();
  for (const NamedTensor& t : program_->tensors) requireMemory(t.tensor, t.name);
  ProgramFile file;
  file.version = cat("abele ", version());
  file.program = encode(session.program());
  file.form = program_->form;
  file.result_form = program_->result_form;
  file.has_model = true;
  for (const NamedTensor& t : program_->tensors) file.tensors.push_back({t.name, t.tensor, t.is_parameter});
  file.optimizer_state = session.optimizerState();
  file.rng_state = session.rngState();
  writeProgramFile(path, file);
}

void Model::load(const std::string& path) {
  ABELE_REQUIRE(!program_, E0705,
                {.what = "loadExecutable() of a compiled model", .remedy = "destroy() the model first"});
  const Turns::Turn turn = moduleTurn();
  const ProgramFile file = readProgramFile(path);
  CompiledProgram program = decodeProgram(file.program);
  const exe::Executable& executable = program.executable;
  const auto kind = [](bool training) { return training ? "a training program" : "an inference program"; };
  ABELE_REQUIRE(executable.training == options_.training, E0712,
                {.what = cat("the file holds ", kind(executable.training)),
                 .at = path,
                 .expected = kind(options_.training),
                 .remedy = "loadTrainingModel for training, loadInferenceModel for inference"});
  ABELE_REQUIRE(file.has_model || module_, E0712,
                {.what = "the file holds a program without weights",
                 .at = path,
                 .remedy = "pass the module, or save with export_model=True in Python"});
  const OptimizerSpec optimizer = program.optimizer;
  options_.device_iterations = executable.device_iterations;
  options_.gradient_accumulation = executable.accumulation;
  auto next = std::make_unique<ModelProgram>();
  next->form = file.form;
  next->result_form = file.result_form;
  next->is_loaded = true;
  next->inputs = program.input_types;
  next->tensors = takeWeights(file);
  for (NamedTensor& t : next->tensors) t.trains = optimizer.rules.group_of.contains(t.name);
  next->session = std::make_unique<Session>(options_);
  next->session->load(std::move(program), modelOf(next->tensors), poll_);
  if (file.has_model) next->session->setOptimizerState(file.optimizer_state);
  if (file.rng_state.defined()) next->session->setRngState(file.rng_state);
  startProfile(*next);
  programs_.push_back(std::move(next));
  program_ = programs_.back().get();
  is_compiled_ = true;
  if (optimizer_ && optimizer.rules.kind != passes::OptimizerRules::Kind::kNone) *optimizer_ = optimizerOf(optimizer);
  attached_ = user_options_.connection_type() != ConnectionType::kNever;
  uploaded_version_ = sharing_->host_version;
}

std::vector<NamedTensor> Model::takeWeights(const ProgramFile& file) {
  at::NoGradGuard no_grad;
  std::vector<NamedTensor> tensors = moduleTensors();
  for (const SavedTensor& saved : file.tensors) {
    if (!module_) {
      tensors.push_back({saved.name, saved.tensor, saved.is_parameter});
      continue;
    }
    auto own = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == saved.name; });
    const bool fits = own != tensors.end() && own->tensor.sizes() == saved.tensor.sizes() &&
                      own->tensor.scalar_type() == saved.tensor.scalar_type();
    ABELE_REQUIRE(fits, E0712,
                  {.what = cat("the module does not fit the file's ", saved.name),
                   .found = own == tensors.end() ? "no such tensor" : shapeOf(own->tensor),
                   .expected = shapeOf(saved.tensor),
                   .remedy = "pass a module of the class that was saved, or none"});
    requireMemory(own->tensor, own->name);
    own->tensor.copy_(saved.tensor);
  }
  return tensors;
}

}  // namespace abele::host
