#include "optimizer/optimizer_numbers.h"

#include <map>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace abele::optimizer {
namespace {

nlohmann::json numbersOf(const compile::OptimizerSpec& spec) {
  return {{"groups", spec.groups}, {"loss_scaling", spec.loss_scaling}};
}

// Which of torch's formulas computes an update. Checkpoints do not say all of them: those of former versions in C++
// lack "fused", and "libtorch" is only where it is on.
constexpr const char* kFused = "fused";
constexpr const char* kLibtorch = "libtorch";

/// The numbers of a group as the model's optimizer has them.
nlohmann::json withoutUnknown(nlohmann::json group, const std::map<std::string, double>& known) {
  if (!group.is_object()) return group;
  // A run may continue in the other language. The optimizer that it then has decides whose formulas apply.
  group.erase(kLibtorch);
  if (known.contains(kLibtorch)) group[kLibtorch] = known.at(kLibtorch);
  if (group.contains(kFused) && !known.contains(kFused) && group[kFused] == 0.0) group.erase(kFused);
  if (!group.contains(kFused) && known.contains(kFused)) group[kFused] = known.at(kFused);
  return group;
}

}  // namespace

std::string textOfNumbers(const compile::OptimizerSpec& spec) { return numbersOf(spec).dump(); }

compile::OptimizerSpec withNumbers(compile::OptimizerSpec spec, const std::string& text) {
  const auto given = boundedJson(text);
  const auto misfit = [&] {
    throwUser(ErrorCode::E0706, {.what = "the checkpoint was written with another optimizer than the model's",
                                 .found = text,
                                 .expected = numbersOf(spec).dump(),
                                 .remedy = "make the model with the same optimizer as the checkpoint's"});
  };
  if (!given.is_object() || !given.contains("groups") || !given["groups"].is_array() ||
      given["groups"].size() != spec.groups.size())
    misfit();
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const nlohmann::json group = withoutUnknown(given["groups"][i], spec.groups[i]);
    for (auto& [name, value] : spec.groups[i]) {
      if (!group.is_object() || group.size() != spec.groups[i].size() || !group.contains(name) ||
          !group[name].is_number())
        misfit();
      value = group[name].get<double>();
    }
  }
  if (!given.contains("loss_scaling") || !given["loss_scaling"].is_number()) misfit();
  spec.loss_scaling = given["loss_scaling"].get<double>();
  return spec;
}

}  // namespace abele::optimizer
