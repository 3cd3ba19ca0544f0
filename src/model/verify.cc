// abele::verify of a model.
#include "verification/verify.h"

#include "base/error.h"
#include "calls/forms.h"
#include "compile/tensors.h"
#include "model/hooks.h"
#include "model/libtorch_model.h"
#include "model/libtorch_module.h"
#include "modules/lines.h"
#include "modules/module.h"
#include "modules/placed_modules.h"

namespace abele::model {

Verification LibTorchModel::verify(const std::vector<detail::Flat>& batches) {
  const detail::StructuredForward& forward = own().forward();
  ABELE_REQUIRE(forward, E0705,
                {.what = "a loaded model has no forward to compare with",
                 .remedy = "verify the model that the program was saved from"});
  const Turns::Turn turn = moduleTurn();
  pullFromTrainers();
  pullIfStale();
  std::vector<modules::NamedTensor> tensors = own().tensors();
  const std::string form = batches.empty() ? "" : batches[0].form;
  verification::VerifyRequest request{
      .options = own().options(), .program = {}, .optimizer = {}, .eager = {}, .make_update = {}};
  modules::PlacedModules placed(module(), tensors, request.options.strategy == compile::Strategy::kPipelined);
  request.eager = [&](const std::vector<at::Tensor>& inputs) { return forward(inputs, form).tensors; };
  request.program.forward = [&](const std::vector<at::Tensor>& inputs) {
    placed.begin();
    return request.eager(inputs);
  };
  request.program.reads_model = placed.reader();
  request.program.checks_comparisons = true;
  const modules::LineScope line(own().line());
  request.program.source_location = modules::currentLine;
  for (modules::NamedTensor& t : tensors) compile::requireMemory(t.tensor, t.name);
  for (modules::NamedTensor& t : tensors) request.program.model.push_back({t.name, &t.tensor, t.is_parameter});
  if (Model::optimizer()) request.optimizer = Model::optimizer()->spec(tensors);
  std::vector<std::vector<at::Tensor>> inputs;
  for (const detail::Flat& batch : batches) {
    ABELE_REQUIRE(batch.form == form, E0704,
                  {.what = "the batches have different structures",
                   .found = calls::formInWords(batch.form),
                   .expected = calls::formInWords(form)});
    inputs.push_back(batch.tensors);
  }
  const CompileHooks hooks;
  return verification::verify(request, inputs);
}

}  // namespace abele::model
