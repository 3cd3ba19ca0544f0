#include "model/libtorch_module.h"

#include <utility>

#include "base/error.h"
#include "compile/tensors.h"
#include "model/hooks.h"
#include "model/trained_parameters.h"
#include "modules/frozen.h"
#include "modules/lines.h"
#include "modules/placed_modules.h"
#include "modules/script_module.h"

namespace abele::model {

LibTorchModule::LibTorchModule(torch::nn::Module* module, detail::StructuredForward forward, std::string line,
                               compile::ProgramOptions options)
    : program_options(std::move(options)),
      module_(module),
      owner_(module ? modules::ownerOf(*module) : nullptr),
      forward_(std::move(forward)),
      line_(std::move(line)) {}

LibTorchModule::~LibTorchModule() { releaseParameters(this); }

std::vector<modules::NamedTensor> LibTorchModule::tensors() {
  return module_ ? modules::tensorsOf(*module_) : std::vector<modules::NamedTensor>();
}

std::vector<modules::ModuleKind> LibTorchModule::modules() {
  return module_ ? modules::moduleKinds(*module_) : std::vector<modules::ModuleKind>();
}

ModuleSource::Captured LibTorchModule::capture(const std::string& form,
                                               const std::vector<modules::NamedTensor>& tensors,
                                               const Compile& compile) {
  ABELE_REQUIRE(
      forward_, E0705,
      {.what = "a loaded model that was destroyed has no forward to compile", .remedy = "load the file again"});
  modules::PlacedModules placed(module_, tensors, program_options.strategy == compile::Strategy::kPipelined);
  Captured captured;
  compile::Program program;
  program.forward = [&](const std::vector<at::Tensor>& inputs) {
    placed.begin();
    detail::Flat results = forward_(inputs, form);
    modules::requireOwnTensors(module_);
    captured.result_form = std::move(results.form);
    return std::move(results.tensors);
  };
  const modules::LineScope line(line_);
  program.source_location = modules::currentLine;
  program.checks_comparisons = true;
  program.reads_model = placed.reader();
  program.recorded = [&](const capture::Recording& recording) {
    captured.frozen = std::make_shared<modules::Frozen>(recording, tensors, modules(), program_options.training);
    modules::warnOfHeldResult(recording);
  };
  const CompileHooks hooks;
  compile(program);
  return captured;
}

std::string LibTorchModule::typeText(const at::Tensor& tensor) const { return compile::typeOf(tensor).str(); }
void LibTorchModule::claim(const std::vector<modules::NamedTensor>& tensors) { claimParameters(this, model_, tensors); }
void LibTorchModule::release() { releaseParameters(this); }
std::vector<std::shared_ptr<Model>> LibTorchModule::trainers() { return trainersOf(tensors()); }
uint64_t LibTorchModule::generation() const { return numChanges(); }
uint64_t LibTorchModule::lastEnd() { return model::lastEnd(tensors()); }

}  // namespace abele::model
