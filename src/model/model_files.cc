// Files of a model: what save() puts into one, and how a model goes on from one.
#include <utility>

#include "base/error.h"
#include "compile/compiled_program.h"
#include "compile/tensors.h"
#include "model/model.h"

namespace abele::host {

void Model::save(const std::string& path, Saving saving) {
  const Session& session = compiled("save()");
  const Turns::Turn turn = moduleTurn();
  if (saving.with_model) {
    pullFromTrainers();
    pullIfStale();
  }
  ProgramFile file;
  file.version = std::move(saving.version);
  file.metadata = std::move(saving.metadata);
  file.program = encode(session.program());
  file.form = std::move(saving.form);
  file.result_form = std::move(saving.result_form);
  file.has_model = saving.with_model;
  if (saving.with_model) {
    std::vector<NamedTensor> tensors = source_->tensors();
    if (tensors.empty()) tensors = program_->tensors;  // the program came from a file, and there is no module
    for (const NamedTensor& t : tensors) {
      requireMemory(t.tensor, t.name);
      file.tensors.push_back({t.name, t.tensor, t.is_parameter});
    }
    file.optimizer_state = session.optimizerState();
    if (saving.objects) file.objects = saving.objects(tensors);
  }
  if (saving.with_random_state) file.rng_state = session.rngState();
  writeProgramFile(path, file);
}

void Model::resume(const ProgramFile& file) {
  compiled("resume()");
  goOnFrom({.optimizer_state = file.optimizer_state, .rng_state = file.rng_state});
}

}  // namespace abele::host
