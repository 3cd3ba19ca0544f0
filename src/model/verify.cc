// abele::verify of a model.
#include "session/verify.h"

#include "base/error.h"
#include "compile/tensors.h"
#include "model/forms.h"
#include "model/libtorch_model.h"
#include "model/libtorch_module.h"
#include "model/lines.h"
#include "model/placed_modules.h"

namespace abele::host {

abele::Verification LibTorchModel::verify(const std::vector<detail::Flat>& batches) {
  const detail::StructuredForward& forward = own().forward();
  ABELE_REQUIRE(forward, E0705,
                {.what = "a loaded model has no forward to compare with",
                 .remedy = "verify the model that the program was saved from"});
  const Turns::Turn turn = moduleTurn();
  pullFromTrainers();
  pullIfStale();
  std::vector<NamedTensor> tensors = own().tensors();
  const std::string form = batches.empty() ? "" : batches[0].form;
  VerifyRequest request{.options = own().options(), .program = {}, .optimizer = {}, .eager = {}, .make_update = {}};
  PlacedModules placed(module(), tensors, request.options.strategy == Strategy::kPipelined);
  request.eager = [&](const std::vector<at::Tensor>& inputs) { return forward(inputs, form).tensors; };
  request.program.forward = [&](const std::vector<at::Tensor>& inputs) {
    placed.begin();
    return request.eager(inputs);
  };
  request.program.reads_model = placed.reader();
  request.program.checks_comparisons = true;
  const LineScope line(own().line());
  request.program.source_location = currentLine;
  for (NamedTensor& t : tensors) requireMemory(t.tensor, t.name);
  for (NamedTensor& t : tensors) request.program.model.push_back({t.name, &t.tensor, t.is_parameter});
  if (Model::optimizer()) request.optimizer = Model::optimizer()->spec(tensors);
  std::vector<std::vector<at::Tensor>> inputs;
  for (const detail::Flat& batch : batches) {
    ABELE_REQUIRE(
        batch.form == form, E0704,
        {.what = "the batches are built differently", .found = formInWords(batch.form), .expected = formInWords(form)});
    inputs.push_back(batch.tensors);
  }
  const CompileHooks hooks;
  const host::Verification found = host::verify(request, inputs);
  abele::Verification result{found.batches, found.micro_batches, found.values, {}, found.notes, found.text()};
  if (!found.difference) return result;
  const host::Difference& d = *found.difference;
  result.difference = abele::Difference{kindName(d.kind),
                                        d.op,
                                        d.line,
                                        d.scope,
                                        exe::directionName(static_cast<exe::Direction>(d.direction)),
                                        d.stage,
                                        d.batch,
                                        d.micro_batch,
                                        d.element,
                                        d.elements,
                                        d.of,
                                        d.type,
                                        d.found,
                                        d.expected,
                                        d.reason};
  return result;
}

}  // namespace abele::host
