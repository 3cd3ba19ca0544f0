// abele::TrainingModel and InferenceModel: a Session each, and who has the newest weights of a module.
#include "abele/model.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>

#include <ATen/core/grad_mode.h>

#include "abele/version.h"
#include "base/error.h"
#include "base/log.h"
#include "host/compiled_program.h"
#include "host/program_file.h"
#include "host/public_access.h"

namespace abele {
namespace {

class Core;

/// What all models of one module share.
struct Sharing {
  Core* trainer = nullptr;   // the live training model
  int64_t host_version = 0;  // counts copies from a device into the module
};

/// The Sharing of a module; alive while a model of the module is.
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

std::string shapeOf(const at::Tensor& tensor) {
  return contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec()).str();
}

/// What training and inference models have in common. Source: spec executor.md sections 6 and 7.
class Core {
 public:
  Core(torch::nn::Module* module, Forward forward, const Options& options, bool training)
      : user_options_(options),
        module_(module),
        owner_(module ? host::ownerOf(*module) : nullptr),
        forward_(std::move(forward)),
        options_(OptionsAccess::session(options, training)),
        sharing_(sharingOf(module)) {
    host::Session check(options_);  // refuses options before anything is compiled
    options.freeze();
    if (options_.training) claimTraining();
  }

  ~Core() {
    try {
      pullIfStale();
    } catch (const std::exception& error) {
      log::warn("weights of a training model were not copied back: ", error.what());
    }
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  }

  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  void compile(const std::vector<at::Tensor>& inputs, const optim::Optimizer* optimizer) {
    if (session_) {
      log::warn("compile() of a compiled model is ignored; destroy() it first to compile again");
      return;
    }
    ABELE_REQUIRE(
        forward_, E0705,
        {.what = "a loaded model that was destroyed has no forward to compile", .remedy = "load the file again"});
    if (options_.training) claimTraining();
    pullFromTrainer();
    tensors_ = module_ ? host::tensorsOf(*module_) : std::vector<host::NamedTensor>();
    host::Session::Program program;
    program.forward = forward_;
    for (host::NamedTensor& t : tensors_) program.model.push_back({t.name, &t.tensor, t.is_parameter});
    auto session = std::make_unique<host::Session>(options_);
    session->compile(program, inputs, optimizer ? host::optimizerSpec(*optimizer, tensors_) : host::OptimizerSpec());
    session_ = std::move(session);
    uploaded_version_ = sharing_->host_version;
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const optim::Optimizer* optimizer) {
    ABELE_REQUIRE(user_options_.connection_type() != ConnectionType::kNever, E0702,
                  {.what = "the connection type is Never: the model compiles, and does not run",
                   .remedy = "connectionType(ConnectionType::kAlways) or kOnDemand"});
    if (!session_) compile(inputs, optimizer);
    if (!options_.training) {
      pullFromTrainer();
      if (uploaded_version_ != sharing_->host_version) upload();
    }
    if (options_.training) stale_ = true;
    return session_->run(inputs, poll_);
  }

  host::Session& compiled(const char* call) {
    ABELE_REQUIRE(
        session_, E0705,
        {.what = cat(call, " needs a compiled model"), .remedy = "call the model once, or compile() it, first"});
    return *session_;
  }
  bool isCompiled() const { return session_ != nullptr; }

  void download() {
    compiled("copyWeightsToHost()").copyWeightsToHost();
    stale_ = false;
    uploaded_version_ = ++sharing_->host_version;
  }
  void upload() {
    compiled("copyWeightsToDevice()").copyWeightsToDevice();
    stale_ = false;
    uploaded_version_ = sharing_->host_version;
  }

  void save(const std::string& path) {
    const host::Session& session = compiled("save()");
    pullIfStale();
    host::ProgramFile file;
    file.version = cat("abele ", version());
    file.program = host::encode(session.program());
    file.has_model = true;
    for (const host::NamedTensor& t : tensors_) file.tensors.push_back({t.name, t.tensor, t.is_parameter});
    file.optimizer_state = session.optimizerState();
    file.rng_state = session.rngState();
    host::writeProgramFile(path, file);
  }

  /// Goes on from a file. Requires: nothing was compiled.
  void load(const std::string& path) {
    const host::ProgramFile file = host::readProgramFile(path);
    host::CompiledProgram program = host::decodeProgram(file.program);
    const exe::Executable& executable = program.executable;
    const auto kind = [](bool training) { return training ? "a training program" : "an inference program"; };
    ABELE_REQUIRE(executable.training == options_.training, E0712,
                  {.what = cat("the file holds ", kind(executable.training)),
                   .at = path,
                   .expected = kind(options_.training),
                   .remedy = "loadTrainingModel for training, loadInferenceModel for inference"});
    ABELE_REQUIRE(
        file.has_model, E0712,
        {.what = "the file holds a program without weights", .at = path, .remedy = "save it with export_model=True"});
    options_.device_iterations = executable.device_iterations;
    options_.gradient_accumulation = executable.accumulation;
    takeWeights(file);
    std::vector<capture::ModelTensor> model;
    for (host::NamedTensor& t : tensors_) model.push_back({t.name, &t.tensor, t.is_parameter});
    auto session = std::make_unique<host::Session>(options_);
    session->load(std::move(program), model);
    session->setOptimizerState(file.optimizer_state);
    if (file.rng_state.defined()) session->setRngState(file.rng_state);
    session_ = std::move(session);
    uploaded_version_ = sharing_->host_version;
  }

  void destroy() {
    pullIfStale();
    session_.reset();
    if (sharing_->trainer == this) sharing_->trainer = nullptr;
  }

  void group(const std::string& parameter, CommGroupType type, int64_t shards, VariableRetrievalMode mode) {
    ABELE_REQUIRE(!session_, E0705,
                  {.what = cat("replicaGrouping of ", parameter, " after the model was compiled"),
                   .remedy = "call it before the model, or destroy() the model first"});
    std::erase_if(options_.groupings, [&](const auto& grouping) { return grouping.parameter == parameter; });
    options_.groupings.push_back(
        {parameter, host::commGroup(type), shards, mode == VariableRetrievalMode::kAllReplicas});
  }

  std::string report() { return host::reportText(compiled("report()").report()); }
  std::string costs() { return compiled("costs()").costs(); }
  void setInterrupt(std::function<bool()> poll) { poll_ = std::move(poll); }
  const std::vector<host::NamedTensor>& tensors() const { return tensors_; }

 private:
  /// The file's weights into the module's tensors of the same names; without a module they are the model's own.
  void takeWeights(const host::ProgramFile& file) {
    at::NoGradGuard no_grad;
    tensors_ = module_ ? host::tensorsOf(*module_) : std::vector<host::NamedTensor>();
    for (const host::SavedTensor& saved : file.tensors) {
      if (!module_) {
        tensors_.push_back({saved.name, saved.tensor, saved.is_parameter});
        continue;
      }
      auto own = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == saved.name; });
      const bool fits = own != tensors_.end() && own->tensor.sizes() == saved.tensor.sizes() &&
                        own->tensor.scalar_type() == saved.tensor.scalar_type();
      ABELE_REQUIRE(fits, E0712,
                    {.what = cat("the module does not fit the file's ", saved.name),
                     .found = own == tensors_.end() ? "no such tensor" : shapeOf(own->tensor),
                     .expected = shapeOf(saved.tensor),
                     .remedy = "pass a module of the class that was saved, or none"});
      own->tensor.copy_(saved.tensor);
    }
  }

  void claimTraining() {
    ABELE_REQUIRE(!sharing_->trainer || sharing_->trainer == this, E0709,
                  {.what = "the module is already wrapped for training",
                   .found = "a live training model of it",
                   .expected = "one training model per module",
                   .remedy = "destroy() the other training model first"});
    sharing_->trainer = this;
  }
  void pullIfStale() {
    if (session_ && stale_) download();
  }
  void pullFromTrainer() {
    if (sharing_->trainer && sharing_->trainer != this) sharing_->trainer->pullIfStale();
  }

  const Options user_options_;
  torch::nn::Module* module_;
  std::shared_ptr<const void> owner_;
  Forward forward_;
  host::SessionOptions options_;
  std::shared_ptr<Sharing> sharing_;
  std::vector<host::NamedTensor> tensors_;  // of the compiled session, which points into it
  std::unique_ptr<host::Session> session_;
  std::function<bool()> poll_;
  bool stale_ = false;  // the device is newer than the module
  int64_t uploaded_version_ = 0;
};

}  // namespace

struct TrainingModel::Impl {
  Impl(torch::nn::Module& module, Forward forward, const Options& options, const optim::Optimizer& chosen)
      : optimizer(chosen), core(&module, std::move(forward), options, /*training=*/true) {
    host::optimizerSpec(optimizer, host::tensorsOf(module));  // refuses a wrong optimizer at once
  }
  /// From a file: the compiled optimizer goes on with its own values.
  Impl(const std::string& path, torch::nn::Module* module, const Options& options)
      : optimizer(optim::SGD{}), core(module, nullptr, options, /*training=*/true) {
    core.load(path);
  }
  optim::Optimizer optimizer;
  Core core;
};

struct InferenceModel::Impl {
  Impl(torch::nn::Module* module, Forward forward, const Options& options)
      : core(module, std::move(forward), options, /*training=*/false) {}
  Impl(const std::string& path, torch::nn::Module* module, const Options& options)
      : core(module, nullptr, options, /*training=*/false) {
    core.load(path);
  }
  Core core;
};

/// Makes the public objects from their parts.
class ModelAccess {
 public:
  template <class Model>
  static Model make(std::unique_ptr<typename Model::Impl> impl) {
    return Model(std::move(impl));
  }
  template <class Model, class... Parts>
  static Model build(Parts&&... parts) {
    return make<Model>(std::make_unique<typename Model::Impl>(std::forward<Parts>(parts)...));
  }
};

TrainingModel makeTrainingModel(torch::nn::Module& module, Forward forward, const Options& options,
                                const optim::Optimizer& optimizer) {
  return ModelAccess::build<TrainingModel>(module, std::move(forward), options, optimizer);
}
InferenceModel makeInferenceModel(torch::nn::Module* module, Forward forward, const Options& options) {
  return ModelAccess::build<InferenceModel>(module, std::move(forward), options);
}

TrainingModel loadTrainingModel(const std::string& path, const Options& options) {
  return ModelAccess::build<TrainingModel>(path, nullptr, options);
}
TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  return ModelAccess::build<TrainingModel>(path, &module, options);
}
InferenceModel loadInferenceModel(const std::string& path, const Options& options) {
  return ModelAccess::build<InferenceModel>(path, nullptr, options);
}
InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module, const Options& options) {
  return ModelAccess::build<InferenceModel>(path, &module, options);
}

TrainingModel::TrainingModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainingModel::TrainingModel(TrainingModel&&) noexcept = default;
TrainingModel& TrainingModel::operator=(TrainingModel&&) noexcept = default;
TrainingModel::~TrainingModel() = default;

std::vector<at::Tensor> TrainingModel::operator()(const std::vector<at::Tensor>& inputs) {
  return impl_->core.run(inputs, &impl_->optimizer);
}
void TrainingModel::replicaGrouping(const std::string& parameter, CommGroupType type, int64_t shards,
                                    VariableRetrievalMode mode) {
  impl_->core.group(parameter, type, shards, mode);
}
void TrainingModel::compile(const std::vector<at::Tensor>& inputs) { impl_->core.compile(inputs, &impl_->optimizer); }
bool TrainingModel::isCompiled() const { return impl_->core.isCompiled(); }
void TrainingModel::copyWeightsToHost() { impl_->core.download(); }
void TrainingModel::copyWeightsToDevice() { impl_->core.upload(); }
void TrainingModel::setOptimizer(const optim::Optimizer& optimizer) {
  if (impl_->core.isCompiled())
    impl_->core.compiled("setOptimizer()").setOptimizer(host::optimizerSpec(optimizer, impl_->core.tensors()));
  impl_->optimizer = optimizer;
}
std::string TrainingModel::report() const { return impl_->core.report(); }
std::string TrainingModel::costs() const { return impl_->core.costs(); }
void TrainingModel::save(const std::string& path) { impl_->core.save(path); }
void TrainingModel::destroy() { impl_->core.destroy(); }
void TrainingModel::setInterrupt(std::function<bool()> poll) { impl_->core.setInterrupt(std::move(poll)); }

InferenceModel::InferenceModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
InferenceModel::InferenceModel(InferenceModel&&) noexcept = default;
InferenceModel& InferenceModel::operator=(InferenceModel&&) noexcept = default;
InferenceModel::~InferenceModel() = default;

std::vector<at::Tensor> InferenceModel::operator()(const std::vector<at::Tensor>& inputs) {
  return impl_->core.run(inputs, nullptr);
}
void InferenceModel::compile(const std::vector<at::Tensor>& inputs) { impl_->core.compile(inputs, nullptr); }
bool InferenceModel::isCompiled() const { return impl_->core.isCompiled(); }
void InferenceModel::copyWeightsToHost() { impl_->core.download(); }
void InferenceModel::copyWeightsToDevice() { impl_->core.upload(); }
std::string InferenceModel::report() const { return impl_->core.report(); }
void InferenceModel::save(const std::string& path) { impl_->core.save(path); }
void InferenceModel::destroy() { impl_->core.destroy(); }
void InferenceModel::setInterrupt(std::function<bool()> poll) { impl_->core.setInterrupt(std::move(poll)); }

}  // namespace abele
