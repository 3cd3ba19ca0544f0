#include "model/libtorch_module.h"

#include <utility>

#include "base/error.h"
#include "compile/tensors.h"
#include "model/forms.h"
#include "model/frozen.h"
#include "model/lines.h"
#include "model/placed_modules.h"
#include "model/script_module.h"
#include "model/trained_parameters.h"

namespace abele::host {

LibTorchModule::LibTorchModule(torch::nn::Module* module, detail::StructuredForward forward, std::string line,
                               ProgramOptions options)
    : program_options(std::move(options)),
      module_(module),
      owner_(module ? ownerOf(*module) : nullptr),
      forward_(std::move(forward)),
      line_(std::move(line)) {}

LibTorchModule::~LibTorchModule() { releaseParameters(this); }

std::vector<NamedTensor> LibTorchModule::tensors() {
  return module_ ? tensorsOf(*module_) : std::vector<NamedTensor>();
}

std::vector<ModuleKind> LibTorchModule::modules() {
  return module_ ? moduleKinds(*module_) : std::vector<ModuleKind>();
}

ModuleSource::Captured LibTorchModule::capture(const std::string& form, const std::vector<NamedTensor>& tensors,
                                               const Compile& compile) {
  ABELE_REQUIRE(
      forward_, E0705,
      {.what = "a loaded model that was destroyed has no forward to compile", .remedy = "load the file again"});
  PlacedModules placed(module_, tensors, program_options.strategy == Strategy::kPipelined);
  Captured captured;
  Program program;
  program.forward = [&](const std::vector<at::Tensor>& inputs) {
    placed.begin();
    detail::Flat results = forward_(inputs, form);
    requireOwnTensors(module_);
    captured.result_form = std::move(results.form);
    return std::move(results.tensors);
  };
  const LineScope line(line_);
  program.source_location = currentLine;
  program.checks_comparisons = true;
  program.reads_model = placed.reader();
  program.recorded = [&](const capture::Recording& recording) {
    captured.frozen = std::make_shared<Frozen>(recording, tensors, modules(), program_options.training);
    warnOfHeldResult(recording);
  };
  const CompileHooks hooks;
  compile(program);
  return captured;
}

std::string LibTorchModule::typeText(const at::Tensor& tensor) const { return typeOf(tensor).str(); }
void LibTorchModule::claim(const std::vector<NamedTensor>& tensors) { claimParameters(this, model_, tensors); }
void LibTorchModule::release() { releaseParameters(this); }
std::vector<std::shared_ptr<Model>> LibTorchModule::trainers() { return trainersOf(tensors()); }
uint64_t LibTorchModule::generation() const { return numChanges(); }
uint64_t LibTorchModule::lastEnd() { return host::lastEnd(tensors()); }

}  // namespace abele::host
