// Calls of a model by the rules of its policy: converts a caller's tensors and runs a step.
#include <algorithm>
#include <utility>

#include "model/model.h"
#include "modules/module.h"
#include "options/notes.h"

namespace abele::model {

std::vector<at::Tensor> Model::deviceInputs(const std::vector<at::Tensor>& given) {
  const auto has_float64 = [this] {
    return std::ranges::any_of(source_->tensors(), [](const modules::NamedTensor& each) {
      return each.is_parameter && each.tensor.scalar_type() == at::kDouble;
    });
  };
  return calls::deviceInputs(
      given,
      {.policy = rules_.policy, .has_float64 = has_float64, .warn = [this](const auto& text) { warnOnce(text); }});
}

std::vector<at::Tensor> Model::inTypes(std::vector<at::Tensor> inputs) const {
  return calls::inTypes(std::move(inputs), program_->inputs, rules_.policy);
}

std::vector<at::Tensor> Model::outcome(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs,
                                       std::vector<at::Tensor> results) const {
  calls::writeBack(given, inputs, program_->captured.written, rules_.policy);
  return calls::narrowedResults(std::move(results), program_->captured.constants, rules_.policy);
}

at::Tensor Model::anchor(const std::string& short_name) {
  return calls::narrowed(compiled("getAnchoredTensor()").anchor(short_name), cat("the anchor '", short_name, "'"),
                         rules_.policy);
}

void Model::warnOnce(const std::string& text) {
  if (warned_.insert(text).second) options::note(log::Level::kWarn, text);
}

}  // namespace abele::model
