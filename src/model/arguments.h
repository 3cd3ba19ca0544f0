// The tensors of a call on their way to the devices and back, by the rules of a policy.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/policy.h"

namespace abele::host {

/// What a front end knows of the tensors of a call.
struct ArgumentRules {
  const Policy& policy;
  std::function<bool()> has_float64;                  // has the module a parameter of that type?
  std::function<void(const std::string& text)> warn;  // once for each text
};
/// Throws E0708 for nested tensors and those of other layouts than strided.
void requireDense(const std::vector<at::Tensor>& inputs);
/// The tensors as the devices take them. Throws E0708 for those they do not take.
std::vector<at::Tensor> deviceInputs(const std::vector<at::Tensor>& given, const ArgumentRules& rules);
/// In the types that a program was compiled for: results of the last call are narrower than the arguments they came
/// from.
std::vector<at::Tensor> inTypes(std::vector<at::Tensor> inputs, const std::vector<Type>& compiled,
                                const Policy& policy);

/// Throws E0708 where an argument that a step writes shares memory with another one: devices have a copy of each.
/// written: their numbers.
void requireApart(const std::vector<at::Tensor>& inputs, const std::vector<size_t>& written);

/// A value as callers get it. name: what messages call it. Throws E0609 for an integer that the narrow type does not
/// hold.
at::Tensor narrowed(const at::Tensor& value, const std::string& name, const Policy& policy);
/// What a step wrote into its inputs to the tensors that these are copies of. written: their numbers. Throws as
/// narrowed().
void writeBack(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs,
               const std::vector<size_t>& written, const Policy& policy);
/// The results of a step as callers get them; those of other processes are undefined. constants: by result, the shape
/// of one micro-batch. Throws as narrowed().
using Constants = std::map<size_t, std::vector<int64_t>>;
std::vector<at::Tensor> narrowedResults(std::vector<at::Tensor> results, const Constants& constants,
                                        const Policy& policy);

}  // namespace abele::host
