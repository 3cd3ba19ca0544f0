// Files of a model: how save() writes them, and how a model resumes from them.
#include <algorithm>
#include <filesystem>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "collective/announcement.h"
#include "compile/compiled_program.h"
#include "compile/meta_tensors.h"
#include "compile/tensors.h"
#include "files/tensor_set.h"
#include "files/together.h"
#include "model/model.h"
#include "modules/module.h"

namespace abele::model {

namespace {

constexpr const char* kSaves = "saves a model";

bool isOnMeta(const modules::NamedTensor& each) { return each.tensor.is_meta(); }

/// Throws E0712 in all processes if they name different files, because one process writes for all.
void requireSamePath(const session::Session& session, const std::string& path) {
  const uint64_t own = collective::hashOf(path.data(), path.size());
  for (const uint64_t other : session.meet(kSaves, own))
    ABELE_REQUIRE(other == own, E0712,
                  {.what = "the processes that hold the stages of a model save it into different files",
                   .at = path,
                   .expected = "one file, which the first of them writes",
                   .remedy = "call save() with the same path in all of them"});
}

}  // namespace

void Model::save(const std::string& path, Saving saving) {
  const session::Session& session = compiled("save()");
  const Turns::Turn turn = moduleTurn();
  const bool is_in_parts = saving.with_model && session.hasOwnWeightsAlone();
  const compile::ProcessOptions processes = source_->options().processes;
  // Processes that share the weights of a replica write the file together.
  const bool writes_together = saving.with_model && processes.stages > 1;
  if (writes_together) requireSamePath(session, path);
  if (saving.with_model) {
    pullFromTrainers();
    pullIfStale();
    if (!is_in_parts) optimizer_.downloadIfStale(compiledProgram());
    optimizer_.uploadIfNew(compiledProgram());  // the state may have been loaded after the last run
  }
  files::ProgramFile file;
  file.version = std::move(saving.version);
  file.options = std::move(saving.options);
  file.metadata = std::move(saving.metadata);
  file.program = compile::encode(session.program());
  file.form = std::move(saving.form);
  file.result_form = std::move(saving.result_form);
  file.has_model = saving.with_model;
  if (saving.with_random_state) file.rng_state = session.rngState();
  std::vector<modules::NamedTensor> tensors = source_->tensors();
  if (tensors.empty()) tensors = program_->tensors;  // the program came from a file without a module
  if (saving.with_model && !is_in_parts) {
    for (const modules::NamedTensor& t : tensors) {
      ABELE_REQUIRE(!t.tensor.is_meta(), E0712,
                    {.what = cat(t.name, " is on the meta device, and no device has it"),
                     .at = path,
                     .remedy = cat("save the program without the model (export_model), and the weights by ",
                                   inLanguage("abele::saveWeights"))});
      compile::requireMemory(t.tensor, t.name);
      file.tensors.push_back({t.name, t.tensor, t.is_parameter});
    }
    file.optimizer_state = session.optimizerState();
  }
  const auto write = [&] {
    if (saving.with_model && saving.objects) file.objects = saving.objects(tensors);
    files::writeProgramFile(path, file);
    if (!is_in_parts) files::removePartsBeside(path);
  };
  if (!writes_together) return write();
  const files::Together together(&session, kSaves,
                                 {.what = "could not write its part of the model",
                                  .at = path,
                                  .remedy = "see what that process says; a file that was there before is still there"});
  if (!is_in_parts) {
    together([&] {
      if (processes.index == 0) write();
    });
    return;
  }
  std::map<std::string, at::Tensor> weights;
  for (const modules::NamedTensor& t : tensors) weights.emplace(t.name, t.tensor);
  files::Checkpoint parts = checkpoint(weights);
  parts.state.rng_state = at::Tensor();  // it is in the program's file
  files::writePartsBeside(path, parts, processes.index, processes.stages, together, [&](const std::string& index) {
    file.parts = index;
    write();
  });
}

void Model::fillMetaTensors(Fill fill) {
  fill_ = std::move(fill);
  has_filled_ = false;
}

void Model::fillAll(const std::vector<modules::NamedTensor>& needed,
                    const std::function<void(const modules::NamedTensor&)>& fill) {
  std::vector<at::Tensor> tensors;
  for (const modules::NamedTensor& each : needed) tensors.push_back(each.tensor);
  const compile::Memories given = compile::giveMemory(tensors);
  try {
    std::ranges::for_each(needed, fill);
  } catch (...) {
    compile::takeMemory(given);
    throw;
  }
}

void Model::loadWeights(const std::shared_ptr<const files::WeightFiles>& files,
                        const std::vector<files::WeightTarget>& targets) {
  const Turns::Turn turn = moduleTurn();
  files->require(targets);
  files->requireWhole(targets);
  pullFromTrainers();
  pullIfStale();  // keeps the newest values of tensors that the files lack
  for (const files::WeightTarget& target : targets)
    if (!target.tensor.is_meta()) files->fill(target);
  std::map<std::string, files::WeightTarget> by_name;
  for (const files::WeightTarget& target : targets) by_name.emplace(target.names.front(), target);
  fillMetaTensors([files, by_name = std::move(by_name)](const std::vector<modules::NamedTensor>& needed) {
    fillAll(needed, [&](const modules::NamedTensor& each) {
      const auto target = by_name.find(each.name);
      ABELE_REQUIRE(target != by_name.end() && files->fill(target->second), E0708,
                    {.what = cat(each.name, " is on the meta device, and the loaded files do not have it"),
                     .remedy = "make buffers outside the module's state on the host"});
    });
  });
  ++sharing_->host_version;
  if (program_ && attached_) upload();
}

files::Checkpoint Model::checkpoint(const std::map<std::string, at::Tensor>& weights) {
  const session::Session& session = compiled("saveCheckpoint()");
  files::Checkpoint checkpoint;
  checkpoint.state = files::trainedState(session);
  const auto owners = session.hasOwnWeightsAlone() ? session.owners() : std::map<std::string, int64_t>();
  for (const auto& [name, tensor] : weights) {
    session::StoredTensor& weight = checkpoint.weights[name] = session::stored(tensor);
    if (const auto owner = owners.find(name); owner != owners.end()) weight.process = owner->second;
  }
  return checkpoint;
}

std::string Model::writeCheckpoint(const std::string& folder, const files::Checkpoint& checkpoint, int64_t keep) {
  const session::Session& session = compiled("saveCheckpoint()");
  const compile::ProcessOptions processes = source_->options().processes;
  if (!session.hasOwnWeightsAlone())
    return processes.index == 0 ? files::writeCheckpoint(folder, checkpoint, keep)
                                : files::checkpointPath(folder, checkpoint.step);
  return files::writeParts(
      folder, checkpoint, keep, processes.index, processes.stages,
      files::Together(&session, "writes a checkpoint",
                      {.what = "could not write its part of the checkpoint",
                       .at = folder,
                       .remedy = "see what that process says; the checkpoints that were there are still there"}));
}

void Model::requireWhole(const files::Checkpoint& checkpoint) {
  const compile::ProcessOptions processes = source_->options().processes;
  const bool is_shared = program_ ? program_->session->hasOwnWeightsAlone()
                                  : processes.stages > 1 && std::ranges::any_of(source_->tensors(), isOnMeta);
  const files::Together together(is_shared && program_ ? program_->session.get() : nullptr, "reads a checkpoint",
                                 {.what = "could not read the checkpoint",
                                  .remedy = "see what that process says; nothing was loaded in any of them"});
  together([&] { files::requireWhole(checkpoint, is_shared ? processes.index : 0, is_shared ? processes.count : 1); });
}

void Model::takeWeights(const session::StoredTensors& weights) {
  const Turns::Turn turn = moduleTurn();
  std::vector<modules::NamedTensor> tensors = source_->tensors();
  if (tensors.empty() && program_) tensors = program_->tensors;  // the program came from a file without a module
  takeWeights(weights, tensors);
}

void Model::takeWeights(const session::StoredTensors& weights, const std::vector<modules::NamedTensor>& tensors) {
  const Turns::Turn turn = moduleTurn();
  const at::NoGradGuard no_grad;
  const auto fill = [weights](const modules::NamedTensor& each) {
    compile::requireMemory(each.tensor, each.name);
    const session::StoredTensor& stored = weights.at(each.name);
    const at::Tensor memory = each.tensor.detach();
    const bool is_direct = stored.read_into && memory.device().is_cpu() && compile::typeOf(memory) == stored.type;
    if (!is_direct) {
      memory.copy_(stored.read());
      return;
    }
    stored.read_into(memory);
    if (!each.tensor.is_inference()) each.tensor.unsafeGetTensorImpl()->bump_version();
  };
  for (const modules::NamedTensor& each : tensors)
    if (!each.tensor.is_meta()) fill(each);
  if (std::ranges::any_of(tensors, isOnMeta))
    fillMetaTensors([fill](const std::vector<modules::NamedTensor>& needed) {
      const at::NoGradGuard no_grad;
      fillAll(needed, fill);
    });
  ++sharing_->host_version;
  if (program_ && attached_) uploadWeights();  // without the optimizer's state
}

void Model::requireComplete(const char* what, const char* instead) {
  const std::vector<modules::NamedTensor> tensors = source_->tensors();
  const auto missing = std::ranges::find_if(tensors, isOnMeta);
  const bool is_here = program_ && !program_->session->isOfParent();
  ABELE_REQUIRE(!is_here || !program_->session->hasOwnWeightsAlone(), E0711,
                {.what = cat(what, " of a model of which no process has all tensors"),
                 .found = missing == tensors.end() ? "" : cat(missing->name, " in another process"),
                 .remedy = instead});
  ABELE_REQUIRE(program_ || !fill_ || missing == tensors.end(), E0705,
                {.what = cat(what, " before the model's tensors are read"),
                 .found = cat(missing == tensors.end() ? "" : missing->name, " on the meta device"),
                 .remedy = "call the model once, or compile() it, first"});
}

at::Tensor Model::weight(const std::string& name) {
  const Turns::Turn turn = moduleTurn();
  pullFromTrainers();
  const std::vector<modules::NamedTensor> tensors = source_->tensors();
  const auto found = std::ranges::find(tensors, name, &modules::NamedTensor::name);
  ABELE_REQUIRE(found != tensors.end(), E0708, {.what = cat("the model has no tensor ", name)});
  return program_ ? program_->session->weight(name, found->tensor) : found->tensor.detach().clone();
}

void Model::saveWeights(const std::string& folder, const std::vector<std::string>& left_out) {
  const Turns::Turn turn = moduleTurn();
  pullFromTrainers();
  pullIfStale();
  const compile::ProcessOptions processes = source_->options().processes;
  const std::map<std::string, int64_t> owners = program_ ? program_->session->owners() : decltype(owners)();
  const files::TensorShard shard{.index = processes.index, .count = program_ ? processes.stages : 1};
  std::vector<modules::NamedTensor> tensors = source_->tensors();
  if (tensors.empty() && program_) tensors = program_->tensors;
  files::TensorFile own;
  std::map<std::string, int64_t> shard_of;
  uint64_t total_bytes = 0;
  for (const modules::NamedTensor& each : tensors) {
    if (std::ranges::find(left_out, each.name) != left_out.end()) continue;
    const auto owner = owners.find(each.name);
    const int64_t process = owner == owners.end() ? 0 : owner->second;
    shard_of.emplace(each.name, process);
    total_bytes += each.tensor.nbytes();
    if (process == shard.index) own.tensors.emplace(each.name, each.tensor);
  }
  const files::Together together(program_ ? program_->session.get() : nullptr, "saves weights",
                                 {.what = "could not write its part of the weights",
                                  .at = folder,
                                  .remedy = "see what that process says; weights that were there before may be gone"});
  const std::string mark_text = together.mark();
  // The first replica's processes write. If one fails, it tells the others, which then do not wait for its file.
  together([&] {
    if (shard.index >= shard.count) return;
    own.metadata = {{"format", "pt"}, {files::kSetMark, mark_text}};
    files::writeTensorFile((std::filesystem::path(folder) / shard.fileName()).string(), own);
  });
  together([&] {
    if (shard.index == 0) files::completeTensorSet(folder, shard.count, shard_of, total_bytes, mark_text);
  });
}

void Model::resume(const files::ProgramFile& file, const files::Checkpoint* parts, std::optional<int64_t> updates) {
  files::TrainedState state{.rng_state = file.rng_state};
  if (parts) state.optimizer_state = parts->state.optimizer_state;
  for (const auto& [name, tensor] : file.optimizer_state) state.optimizer_state.emplace(name, session::stored(tensor));
  if (!program_ || parts) {
    goOnFrom(state, updates);
    return;
  }
  files::takeOver(*program_->session, state);
  if (!file.optimizer_state.empty()) optimizer_.noteOther(std::max<int64_t>(this->updates(), 1), /*is_void=*/false);
}

std::vector<modules::NamedTensor> tensorsOfParts(const exe::Executable& executable, const files::Checkpoint& parts) {
  std::vector<modules::NamedTensor> tensors;
  for (const auto& [name, stored] : parts.weights) {
    const bool is_parameter = std::ranges::any_of(executable.externals, [&](const exe::External& external) {
      return external.kind == exe::ExternalKind::kParameter && external.name == name;
    });
    const auto type = static_cast<at::ScalarType>(stored.type.dtype);
    tensors.push_back({name, at::empty(stored.type.sizes, at::dtype(type).device(at::kMeta)), is_parameter});
  }
  return tensors;
}

}  // namespace abele::model
