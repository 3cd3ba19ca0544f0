// Of a model: its optimizer.
#include <utility>

#include "model/model.h"
#include "optimizer/optimizer.h"

namespace abele::model {

optimizer::OptimizerSync::Compiled Model::compiledProgram() const {
  return {.session = *program_->session,
          // A program of a file may have no module.
          .tensors = [this] { return withFormer(program_->is_final ? program_->tensors : source_->tensors()); },
          .scaling_varies = program_->options.auto_loss_scaling,
          .has_devices = rules_.connection != ConnectionType::kNever && !program_->session->isOfParent()};
}

void Model::setOptimizer(std::shared_ptr<optimizer::OptimizerSource> optimizer) {
  if (program_)
    optimizer_.set(std::move(optimizer), compiledProgram());
  else
    optimizer_.use(std::move(optimizer));
}

void Model::sendOptimizer() {
  if (program_ && optimizer_.source()) optimizer_.send(compiledProgram());
}

compile::OptimizerSpec Model::optimizerSpec() {
  return optimizer_.spec(program_ ? compiledProgram().tensors() : source_->tensors());
}

void Model::downloadOptimizerState() {
  if (!program_) return;
  const optimizer::HostState* state = optimizer() ? optimizer()->state() : nullptr;
  // torch's own step() may have changed its state on the host; an optimizer of ours asks only when it is older.
  state && state->isOfTorch() ? optimizer_.downloadIfStale(compiledProgram()) : optimizer_.download(compiledProgram());
}

session::StoredTensors Model::optimizerState() const {
  const std::shared_ptr<session::Session> held = session();
  if (!held) return {};
  session::StoredTensors state = held->wholeState();
  for (auto& [name, tensor] : state) tensor.read = [held, read = std::move(tensor.read)] { return read(); };
  return state;
}

}  // namespace abele::model
