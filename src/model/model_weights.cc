// The weights of the module and those of the devices: which tensors are whose, and copies in both directions.
#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "compile/tensors.h"
#include "model/model.h"
#include "modules/frozen.h"
#include "modules/module.h"
#include "session/written_state.h"

namespace abele::model {
namespace {

/// By name, the types of the model's tensors that the program uses.
std::unordered_map<std::string_view, const Type*> compiledTypes(const session::Session& session) {
  const exe::Executable& executable = session.executable();
  std::unordered_map<std::string_view, const Type*> types;
  for (const exe::External& external : executable.externals) {
    const bool is_model = external.kind == exe::ExternalKind::kParameter || external.kind == exe::ExternalKind::kBuffer;
    if (is_model && external.slot >= 0) types.emplace(external.name, &executable.slots[external.slot].type);
  }
  return types;
}

}  // namespace

void Model::followNames(ModelProgram& program, bool keeps_values) {
  std::vector<std::pair<modules::NamedTensor*, at::Tensor>> replaced;
  size_t at = 0;  // index of the next tensor, unless the module has others than it had
  const std::vector<modules::NamedTensor> now = source_->tensors();
  const auto types = compiledTypes(*program.session);
  for (modules::NamedTensor& own : program.tensors) {
    auto next = at < now.size() && now[at].name == own.name
                    ? now.begin() + static_cast<ptrdiff_t>(at)
                    : std::ranges::find(now, own.name, &modules::NamedTensor::name);
    const bool is_gone = next == now.end();
    if (!is_gone) at = static_cast<size_t>(next - now.begin()) + 1;
    const auto compiled = types.find(own.name);
    if (compiled == types.end() || (is_gone && program.is_final)) continue;
    if (!is_gone) compile::requireMemory(next->tensor, own.name);
    const bool has_dtype = !is_gone && static_cast<DType>(next->tensor.scalar_type()) == compiled->second->dtype;
    // Shared weights have their newest values in the module already, whatever type it has given them.
    const bool is_done = has_dtype || (keeps_values && rules_.policy.shares_weights);
    if (is_done && !is_gone && own.tensor.is_same(next->tensor)) continue;
    const bool fits = has_dtype && own.tensor.sizes() == next->tensor.sizes();
    // The front end puts the newest values into the module if it has another tensor.
    if ((!fits || keeps_values) && std::ranges::count(program.captured.replaced, own.name) > 0) continue;
    ABELE_REQUIRE(fits, E0704,
                  {.what = cat(own.name, " differs from the tensor that the model was compiled with"),
                   .found = is_gone ? "no tensor of this name" : source_->typeText(next->tensor),
                   .expected = has_dtype || is_gone ? source_->typeText(own.tensor) : compiled->second->str(),
                   .remedy = "call destroy() before the next call, so that the model is compiled again"});
    replaced.emplace_back(&own, next->tensor);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [own, tensor] : replaced) {
    // Values that devices share are in this tensor; a download overwrites the others.
    if (keeps_values && !tensor.is_meta() && !own->tensor.is_meta()) tensor.detach().copy_(own->tensor.detach());
    own->tensor = tensor;
  }
}

std::vector<modules::NamedTensor> Model::withFormer(const std::vector<modules::NamedTensor>& tensors) const {
  std::vector<modules::NamedTensor> all = former_;
  all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

void Model::noteFormer(const std::vector<modules::NamedTensor>& tensors) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const modules::NamedTensor& former : former_) known.insert(former.tensor.unsafeGetTensorImpl());
  for (const modules::NamedTensor& each : tensors)
    if (each.is_parameter && known.insert(each.tensor.unsafeGetTensorImpl()).second)
      former_.push_back({each.name, each.tensor, true});
}

void Model::download(ModelProgram& program) {
  followNames(program, /*keeps_values=*/true);
  // Tensors that only another training changes are newer on the host than here.
  sharesWithTrainings() ? session::copyWrittenToHost(*program.session) : program.session->copyWeightsToHost();
}

void Model::upload(ModelProgram& program) {
  followNames(program, /*keeps_values=*/false);
  program.session->copyWeightsToDevice();
  noteTensorsOf(program);
}

void Model::noteTensors() {
  if (program_) noteTensorsOf(*program_);
}

void Model::noteTensorsOf(ModelProgram& program) {
  if (program.captured.frozen) program.captured.frozen->noteUpload(source_->tensors());
}

void Model::download(bool with_state) {
  const Turns::Turn turn = moduleTurn();
  compiled("copyWeightsToHost()");
  // Tensors that devices do not share: an inference of this module may have written them since the last step.
  if (!stale_ && rules_.policy.shares_weights) session::uploadEdited(*program_->session);
  download(*program_);
  stale_ = false;
  uploaded_version_ = ++sharing_->host_version;
  if (with_state) optimizer_.downloadWithWeights(compiledProgram());
}

void Model::upload() {
  const Turns::Turn turn = moduleTurn();
  compiled("copyWeightsToDevice()");
  optimizer_.uploadWithWeights(compiledProgram());
  uploadWeights();
}

void Model::uploadWeights() {
  const Turns::Turn turn = moduleTurn();
  upload(*program_);
  stale_ = false;
  if (rules_.training) ++sharing_->host_version;  // the weights that other models compute with, too
  noteUpload();
}

bool Model::pullIfStale() {
  if (!program_ || !stale_) return false;
  download();
  return true;
}

}  // namespace abele::model
