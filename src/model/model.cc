#include "model/model.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "calls/arguments.h"
#include "calls/forms.h"
#include "compile/compiled_program.h"
#include "compile/tensors.h"
#include "modules/frozen.h"
#include "options/notes.h"
#include "options/value.h"
#include "registry/attachment.h"
#include "session/inputs.h"
#include "session/written_state.h"

namespace abele::model {
namespace {

std::vector<capture::ModelTensor> modelOf(std::vector<modules::NamedTensor>& tensors) {
  std::vector<capture::ModelTensor> model;
  for (modules::NamedTensor& t : tensors) model.push_back({t.name, &t.tensor, t.is_parameter});
  return model;
}

/// Whether the tensor looks the same to forward. Strides of dimensions with one element do not matter.
bool isSameKind(const Type& compiled, const at::Tensor& tensor) {
  if (!tensor.defined() || static_cast<DType>(tensor.scalar_type()) != compiled.dtype ||
      tensor.sizes() != at::IntArrayRef(compiled.sizes))
    return false;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1 && tensor.stride(d) != compiled.strides[static_cast<size_t>(d)]) return false;
  return true;
}

/// Two kinds of arguments, from a little before the place where they differ.
std::string differenceOf(const std::string& first, const std::string& last) {
  const auto words = [](const std::string& form) { return calls::isForm(form) ? calls::formInWords(form) : form; };
  const std::string ours = words(first), theirs = words(last);
  constexpr ptrdiff_t kBefore = 60, kShown = 160;
  const ptrdiff_t same = std::ranges::mismatch(ours, theirs).in1 - ours.begin();
  const size_t begin = static_cast<size_t>(std::max<ptrdiff_t>(same - kBefore, 0));
  const auto shown = [&](const std::string& all) {
    return cat(begin > 0 ? "..." : "", all.substr(begin, kShown), all.size() > begin + kShown ? "..." : "");
  };
  return cat("the arguments were ", shown(ours), ", and are ", shown(theirs));
}

/// Names what makes a model compile again and again: the tensor of the arguments that has had the most types.
template <class Programs>
void warnAtRecompileLimit(const Programs& programs, int64_t limit) {
  if (static_cast<int64_t>(programs.size()) != limit + 1) return;
  std::vector<std::set<std::string>> types(programs.back()->inputs.size());
  std::set<std::string> forms;
  for (const auto& program : programs) {
    forms.insert(program->form);
    for (size_t i = 0; i < std::min(types.size(), program->inputs.size()); ++i)
      types[i].insert(program->inputs[i].str());
  }
  const std::string& last = programs.back()->form;
  const auto most = std::ranges::max_element(types, {}, [](const auto& of_one) { return of_one.size(); });
  std::string what = differenceOf(programs.front()->form, last);
  if (most != types.end() && most->size() >= forms.size()) {
    const auto index = static_cast<size_t>(most - types.begin());
    const std::vector<std::string> names = calls::isForm(last) ? calls::tensorNames(last) : std::vector<std::string>();
    what = cat("argument ", index < names.size() ? names[index] : cat(index), " has had ", most->size(),
               " types and shapes, the last one ", programs.back()->inputs[index].str());
  }
  options::note(log::Level::kWarn,
                cat("recompile limit: the model has ", programs.size(),
                    " programs, one for each kind of arguments, which all keep memory: ", what,
                    "; pad it to a few sizes, pass numbers as tensors, or destroy() the model now and then"));
}

void noteFloat64(const session::Session& session) {
  const auto is_wide = [](const exe::Slot& slot) { return slot.type.dtype == DType::kFloat64; };
  if (std::ranges::any_of(session.executable().slots, is_wide))
    options::note(log::Level::kWarn, "forward computes in float64: its results are narrowed to float32");
}

constexpr const char* kNeedsModule =
    "make a model of the module for them: this one was loaded without a forward to compile";

[[noreturn]] void refuseForm(const std::string& found, const std::string& expected, bool has_forward) {
  throwUser(
      ErrorCode::E0704,
      {.what = "the arguments have another structure than those for which the model was compiled",
       .found = calls::formInWords(found),
       .expected = calls::formInWords(expected),
       .remedy = cat(has_forward ? "make another model for them, or destroy() this one first" : kNeedsModule,
                     "; in brackets is a tuple, struct, array or vector, in braces a map by key; nothing is an empty "
                     "optional")});
}

/// The tensors of a call in a program's order; nothing where it has another structure.
std::optional<std::vector<at::Tensor>> inOrder(const std::vector<at::Tensor>& inputs, const std::string& form,
                                               const std::string& program_form, bool takes_tensors_alone) {
  const std::string given = calls::withoutTrailingNothing(form);
  if (given == program_form) return inputs;
  const std::optional<std::vector<size_t>> order = calls::tensorOrder(program_form, given);
  if (!order) {
    const bool only_tensors = form.find_first_not_of('t') == std::string::npos;
    return takes_tensors_alone && only_tensors ? std::optional(inputs) : std::nullopt;
  }
  std::vector<at::Tensor> ordered;
  for (const size_t i : *order) ordered.push_back(inputs.at(i));
  return ordered;
}

}  // namespace

Model::Model(std::unique_ptr<ModuleSource> source, Rules rules, std::shared_ptr<Sharing> sharing)
    : source_(std::move(source)), rules_(rules), sharing_(sharing ? std::move(sharing) : std::make_shared<Sharing>()) {}

Model::~Model() {
  try {
    const Turns::Turn turn = rules_.training ? moduleTurn() : Turns::Turn();
    endTrace();
    pullBeforeTheEnd();
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  } catch (const std::exception& error) {
    log::warn("weights of a training model were not copied back: ", error.what());
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  }
}

// --- devices ---------------------------------------------------------------------------------------------------------
void Model::takeDevices() {
  session::Session& session = *program_->session;
  const session::DeviceUse use = session::deviceUse(session);
  const bool in_groups = rules_.policy.most_devices > 0;
  registry::Request request{
      .num_devices = in_groups ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(use.count))) : use.count,
      .in_groups = in_groups,
      .group = program_->options.device_group,
      .is_training = rules_.training,
      .model = program_->options.name,
      .targets = use.targets};
  const bool has_them = attachment_ && attachment_->request().num_devices >= request.num_devices;
  if (!has_them) {
    attached_ = false;
    attachment_.reset();
    attachment_ = std::make_unique<registry::Attachment>(std::move(request), poll_);
  }
  device_use_ = use;
  attached_ = true;
}

void Model::releaseDevices() {
  attachment_.reset();
  attached_ = false;
}

class Model::Step {
 public:
  explicit Step(Model& model) : model_(model) {
    if (model_.attachment_) model_.attachment_->beginStep();
  }
  ~Step() {
    if (!model_.attachment_) return;
    model_.busy_ns_.clear();
    if (completed_) session::busyTimes(*model_.program_->session, model_.device_use_, model_.busy_ns_);
    model_.attachment_->endStep(model_.busy_ns_, completed_);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  void complete() { completed_ = true; }

 private:
  Model& model_;
  bool completed_ = false;
};

// --- programs --------------------------------------------------------------------------------------------------------
Model::Found Model::find(const std::vector<at::Tensor>& inputs, const std::string& form) const {
  for (const std::shared_ptr<ModelProgram>& program : programs_) {
    if (!rules_.policy.many_programs) {
      // One program, whose session refuses others, for each order of keys, which is all that such a form says.
      if (program->form == form) return {program, inputs};
      continue;
    }
    if (rules_.policy.many_structures) {
      if (program->form == form && std::ranges::equal(program->inputs, inputs, isSameKind)) return {program, inputs};
      continue;
    }
    std::optional<std::vector<at::Tensor>> ordered =
        inOrder(inputs, form, program->form, /*takes_tensors_alone=*/program->is_final);
    // Values and structures are part of the calling code, so other ones are more likely a mistake than intended.
    if (!ordered) refuseForm(form, program->form, source_->hasForward());
    // The session of a program that is final says what it was compiled for. Another order of keys is another program,
    // since forward may go by the order.
    const bool is_same = program->form == calls::withoutTrailingNothing(form) &&
                         std::ranges::equal(program->inputs, *ordered, isSameKind);
    if (program->is_final || is_same) return {program, *std::move(ordered)};
  }
  return {};
}

void Model::claimTraining() {
  ABELE_REQUIRE(!sharing_->trainer || sharing_->trainer == this, E0709,
                {.what = "the module is already wrapped for training",
                 .found = "a live training model of it",
                 .expected = "one training model per module",
                 .remedy = "destroy() the other training model first"});
  sharing_->trainer = this;
}

std::vector<Turns::Turn> Model::claimModule(const std::vector<modules::NamedTensor>& tensors) {
  if (rules_.training) {
    claimTraining();
    pullIfStale();
    source_->claim(tensors);
  }
  source_->join();
  pullFromTrainers();
  return turnsOfFollowed();
}

std::shared_ptr<Model::ModelProgram> Model::newProgram() {
  auto next = std::make_shared<ModelProgram>();
  next->options = source_->options();
  if (!next->options.weights_owner) next->options.weights_owner = this;
  next->session = std::make_unique<session::Session>(next->options);
  return next;
}

std::shared_ptr<Model::ModelProgram> Model::compileProgram(const std::vector<at::Tensor>& inputs,
                                                           const std::string& form) {
  const Turns::Turn turn = moduleTurn();                    // captures lock the memory of the module
  const std::shared_ptr<ModelProgram> next = newProgram();  // refuses options before anything is claimed
  const std::vector<Turns::Turn> turns = claimModule(source_->tensors());
  next->tensors = source_->tensors();
  noteFormer(next->tensors);
  next->captured = source_->capture(form, next->tensors, [&](compile::Program& program) -> session::Session& {
    program.model = modelOf(next->tensors);
    program.meta = metaOf(next->tensors);
    program.poll = poll_;
    next->session->compile(program, inputs, optimizer_.spec(withFormer(next->tensors)));
    if (!next->options.profile.path.empty()) next->profile.emplace(next->options.profile, *next->session);
    return *next->session;
  });
  if (!rules_.policy.wide_numbers) noteFloat64(*next->session);
  next->form = rules_.policy.many_structures ? form : calls::withoutTrailingNothing(form);
  for (const at::Tensor& input : inputs) next->inputs.push_back(compile::typeOf(input));
  if (TraceFile* file = TraceFile::current()) next->of_process.emplace(*file, trackName());
  return next;
}

compile::MetaTensors Model::metaOf(const std::vector<modules::NamedTensor>& tensors) {
  had_meta_ |= std::ranges::any_of(tensors, [](const modules::NamedTensor& t) { return t.tensor.is_meta(); });
  compile::MetaTensors meta{.materialize = {}, .any = had_meta_};
  if (!fill_) return meta;
  meta.materialize = [this, &tensors](const std::vector<size_t>& indices) {
    ABELE_REQUIRE(!rules_.training || !has_filled_, E0711,
                  {.what = cat("a program needs ", tensors[indices.front()].name,
                               " here, which an earlier program of the model trains in another process"),
                   .expected = "each stage in the same process for all kinds of inputs",
                   .remedy = "place the stages by blocks, or make another model for these inputs"});
    std::vector<modules::NamedTensor> needed;
    for (const size_t i : indices) needed.push_back(tensors[i]);
    fill_(needed);
    has_filled_ = true;
  };
  return meta;
}

bool Model::use(const std::shared_ptr<ModelProgram>& next) {
  if (program_ == next) return false;
  if (program_) {
    // The module is the way from one program's devices to the other's.
    const Turns::Turn turn = moduleTurn();
    if (rules_.training) {
      if (stale_) download();
      next->session->takeStoredState(program_->session->storedState());
      next->session->setOptimizer(optimizer_.spec(withFormer(next->tensors)));
    } else if (!isBehind() && !rules_.policy.shares_weights) {
      session::copyWrittenToHost(*program_->session);
    }
    upload(*next);
    next->session->setRngState(program_->session->rngState());
  }
  noteUpload();
  program_ = next;
  optimizer_.noteProgram(compiledProgram());
  if (attached_) takeDevices();
  return true;
}

bool Model::isReady(const std::vector<at::Tensor>& inputs, const std::string& form) const {
  if (!program_ || !attached_ || find(inputs, form).program != program_) return false;
  if (rules_.training)
    return !rules_.policy.shares_weights || (generation_ == source_->generation() && !sharesWithTrainings() &&
                                             (stale_ || !session::hasEdits(*program_->session)));
  const bool may_pull = (sharing_->trainer && sharing_->trainer != this) || generation_ != source_->generation() ||
                        std::ranges::any_of(followed_, [](const Followed& followed) {
                          const std::shared_ptr<Model> model = followed.model.lock();
                          return model && model->isStale();
                        });
  return !may_pull && !isBehind() && !session::hasEdits(*program_->session);
}

bool Model::choose(const std::vector<at::Tensor>& inputs, const std::string& form) {
  if (const Found found = find(inputs, form); found.program) return use(found.program);
  add(inputs, form);
  return true;
}

void Model::compile(const std::vector<at::Tensor>& inputs, const std::string& form) {
  calls::requireDense(inputs);
  const Found found = find(inputs, form);
  if (!found.program) return add(inputs, form);
  log::warn("compile() has no effect: the model is compiled for these inputs; destroy() it first to compile again");
  use(found.program);
}

void Model::add(const std::vector<at::Tensor>& inputs, const std::string& form) {
  const std::shared_ptr<ModelProgram> next = compileProgram(inputs, form);
  const bool is_first = programs_.empty();
  takeAwaited(*next->session);
  if (!is_first) log::info("program ", programs_.size() + 1, " of the model, for other inputs than before");
  use(next);
  programs_.push_back(next);
  warnAtRecompileLimit(programs_, rules_.recompile_limit);
  is_compiled_ = true;
  if (!is_first) return;
  optimizer_.upload(compiledProgram());  // that it had when the module was wrapped
  if (rules_.connection == ConnectionType::kAlways) takeDevices();
}

void Model::refresh() {
  if (!attached_) attach();
  if (rules_.training) return followTrainings();
  const Turns::Turn turn = moduleTurn();
  pullFromTrainers();
  const bool is_behind = isBehind();
  if (!is_behind && !session::hasEdits(*program_->session)) return;
  const std::vector<Turns::Turn> turns = turnsOfFollowed();
  if (!is_behind) return session::uploadEdited(*program_->session);
  if (!rules_.policy.shares_weights) session::copyWrittenToHost(*program_->session);
  uploadWeights();
}

std::vector<at::Tensor> Model::step(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs) {
  session::Session& session = compiled("a call");
  calls::requireApart(given, program_->captured.written);
  if (!source_->hasForward()) {
    compile::requireMemory(inputs);
    session::checkSameInputs(program_->inputs, inputs, kNeedsModule);
  }
  if (rules_.training) stale_ = true;  // also after an interruption that comes too late
  Step step(*this);
  std::vector<at::Tensor> results = session.run(inputs, poll_);
  step.complete();
  if (!rules_.training && rules_.policy.shares_weights && session::forwardWrites(session)) {
    const Turns::Turn turn = moduleTurn();  // the module's other models may have buffers of their own
    session::copyWrittenToHost(session);
  }
  if (program_->profile) program_->profile->noteRun(session);
  if (trace_ || program_->of_process) noteCall();
  return results;
}

void Model::beginStep() {
  if (rules_.training) optimizer_.beginStep(compiledProgram());
}

void Model::endStep() {
  if (rules_.training) optimizer_.endStep(program_->options.device_iterations);
}

void Model::noteCall() {
  constexpr int64_t kMeasuredCalls = 3;  // then the simulator has the times of the stages
  session::Session& session = *program_->session;
  if (std::optional<report::Timeline>& timeline = program_->of_process; timeline) {
    timeline->note(session);
    if (timeline->numCalls() == kMeasuredCalls) timeline->predict(session);
  }
  if (!trace_) return;
  if (!program_->of_trace) program_->of_trace.emplace(*trace_, trackName());
  program_->of_trace->note(session);
  if (--traced_calls_left_ == 0) endTrace();
}

void Model::trace(const std::string& path, int64_t steps) {
  ABELE_REQUIRE(steps >= 1, E0708, {.what = cat("a trace of ", steps, " calls"), .expected = "1 or more"});
  endTrace();
  trace_ = TraceFile::open(path);
  traced_calls_left_ = steps;
}

void Model::endTrace() {
  if (!trace_) return;
  for (const std::shared_ptr<ModelProgram>& program : programs_)
    if (program->of_trace) {
      program->of_trace->predict(*program->session);
      program->of_trace.reset();
    }
  trace_->close();
  trace_.reset();
}

void Model::warnOfChanges() {
  modules::Frozen* const frozen = program_ ? program_->captured.frozen.get() : nullptr;
  if (!frozen || !frozen->isDue()) return;
  for (const std::string& text : frozen->changes(source_->tensors(), source_->modules())) warnOnce(text);
}

std::vector<at::Tensor> Model::run(const std::vector<at::Tensor>& inputs, const std::string& form) {
  requireDevice();
  calls::requireDense(inputs);
  Found found = find(inputs, form);
  if (found.program) {
    use(found.program);
  } else {
    add(inputs, form);
    found.inputs = inputs;  // their order is the new program's
  }
  refresh();
  warnOfChanges();
  beginStep();
  std::vector<at::Tensor> results = step(found.inputs, found.inputs);
  endStep();
  return results;
}

bool Model::adopt(Adopted adopted) {
  const Turns::Turn turn = moduleTurn();
  const std::shared_ptr<ModelProgram> next = newProgram();
  if (adopted.may_compile) {
    source_->join();
    if (!next->session->wasDividedAlike(adopted.program, poll_)) return false;
  }
  next->form = std::move(adopted.form);
  next->captured = std::move(adopted.captured);
  next->is_final = adopted.is_final;
  next->inputs = adopted.program.input_types;
  for (const compile::WrittenArgument& each : adopted.program.written)
    next->captured.written.push_back(static_cast<size_t>(each.argument));
  next->tensors = std::move(adopted.tensors);
  noteFormer(next->tensors);
  const std::vector<Turns::Turn> turns = claimModule(next->tensors);
  next->session->load(std::move(adopted.program), modelOf(next->tensors), poll_, metaOf(next->tensors));
  takeAwaited(*next->session);
  if (!next->options.profile.path.empty()) next->profile.emplace(next->options.profile, *next->session);
  if (TraceFile* file = TraceFile::current()) next->of_process.emplace(*file, trackName());
  programs_.push_back(next);
  use(next);
  is_compiled_ = true;
  if (!adopted.keeps_optimizer && optimizer()) {
    const optimizer::OptimizerSync::Compiled now = compiledProgram();
    next->session->setOptimizer(optimizer_.spec(now.tensors()));
    optimizer_.noteProgram(now, adopted.numbers_vary);
    optimizer_.upload(now);
  }
  if (rules_.connection == ConnectionType::kAlways) takeDevices();
  return true;
}

void Model::destroy() {
  const Turns::Turn turn = moduleTurn();
  endTrace();
  pullBeforeTheEnd();
  if (program_) optimizer_.downloadIfStale(compiledProgram());
  optimizer_.noteDestroyed();
  program_ = nullptr;
  programs_.clear();
  is_compiled_ = false;
  stale_ = false;
  releaseDevices();
  if (sharing_->trainer == this) sharing_->trainer = nullptr;
  source_->release();
}

session::Session& Model::compiled(const char* call) {
  ABELE_REQUIRE(
      program_, E0705,
      {.what = cat(call, " needs a compiled model"), .remedy = "call the model once, or compile() it, first"});
  return *program_->session;
}

std::shared_ptr<session::Session> Model::session() const {
  return program_ ? std::shared_ptr<session::Session>(program_, program_->session.get()) : nullptr;
}

void Model::goOnFrom(const files::TrainedState& state, std::optional<int64_t> updates) {
  if (program_)
    files::takeOver(*program_->session, state);
  else
    awaited_ = state;
  optimizer_.noteOther(updates ? *updates : files::updatesOf(state), /*is_void=*/true);
}

void Model::takeAwaited(session::Session& session) {
  if (awaited_) files::takeOver(session, *awaited_);
  awaited_.reset();
}

void Model::requireDevice() const {
  if (rules_.connection == ConnectionType::kNever)
    throw options::OptionError(
        ErrorCode::E0702,
        {.what = "the connection type is Never: a model for an offline device compiles, and does not run",
         .remedy = inLanguage("connectionType(ConnectionType::kAlways) or kOnDemand")},
        options::Refused::kCondition);
}

void Model::attach() {
  compiled("attachToDevice()");
  ABELE_REQUIRE(!attached_, E0705, {.what = "the model is attached already"});
  requireDevice();
  takeDevices();
  try {
    uploadWeights();
  } catch (...) {
    releaseDevices();
    throw;
  }
  optimizer_.uploadIfNew(compiledProgram());
}

void Model::detach() {
  compiled("detachFromDevice()");
  ABELE_REQUIRE(attached_, E0705, {.what = "the model is not attached"});
  pullIfStale();
  optimizer_.downloadIfStale(compiledProgram());
  releaseDevices();
}

Turns::Turn Model::moduleTurn() {
  return sharing_->turns.isMine() ? Turns::Turn() : sharing_->turns.take("the training model of the module");
}

Turns::Turn Model::turnOf(Sharing& other) const {
  Turns& turns = other.turns;
  return turns.isMine() ? Turns::Turn() : turns.take("the training model of the module", poll_);
}

void Model::pullBeforeTheEnd() {
  if (!program_ || program_->session->isOfParent()) return;
  try {
    pullIfStale();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::E0704) throw;  // the module has lost tensors, and so has their values
    log::warn("weights of a training model were not copied back: ", error.what());
  }
}

}  // namespace abele::model
