// The functions of Model that concern its optimizer.
#include <exception>
#include <utility>

#include "base/error.h"
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

void Model::updateOnHost(const std::function<void()>& step) {
  const Turns::Turn turn = moduleTurn();
  pullIfStale();  // for buffers that forward wrote
  std::map<std::string, at::Tensor> sums = compiled("step()").gradientSums();
  std::vector<modules::NamedTensor> parameters = source_->tensors();
  std::erase_if(parameters, [](const modules::NamedTensor& each) { return !each.is_parameter; });
  std::vector<at::Tensor> before;  // gradients of the program's own
  for (const modules::NamedTensor& each : parameters)
    before.push_back(std::exchange(each.tensor.mutable_grad(), std::move(sums[each.name])));
  std::exception_ptr failure;
  try {
    step();
  } catch (...) {
    failure = std::current_exception();
  }
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].tensor.mutable_grad() = std::move(before[i]);
  upload();
  if (failure) std::rethrow_exception(failure);
}

void Model::requireHostUpdates() const {
  const compile::ProgramOptions options = source_->options();
  const auto require = [](bool holds, const char* what, std::string remedy) {
    ABELE_REQUIRE(holds, E0706,
                  {.what = cat("the optimizer updates the weights on the host, ", what), .remedy = std::move(remedy)});
  };
  require(options.device_iterations == 1, "once a call",
          "leave deviceIterations at 1, and accumulate gradients instead");
  require(options.processes.count == 1, "in one process", "start one process with all replicas");
  require(!options.auto_loss_scaling, "without automatic loss scaling", "turn setAutomaticLossScaling off");
}

session::StoredTensors Model::optimizerState() const {
  const std::shared_ptr<session::Session> held = session();
  if (!held) return {};
  session::StoredTensors state = held->wholeState();
  for (auto& [name, tensor] : state) tensor.read = [held, read = std::move(tensor.read)] { return read(); };
  return state;
}

}  // namespace abele::model
