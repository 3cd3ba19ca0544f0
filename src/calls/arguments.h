// Converts the tensors of a call for the devices and back, by the rules of a policy.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "calls/policy.h"

namespace abele::calls {

/// What the front end knows about the tensors of a call.
struct ArgumentRules {
  const Policy& policy;
  std::function<bool()> has_float64;                  // returns true if the module has a parameter of that type
  std::function<void(const std::string& text)> warn;  // called once per text
};
/// Throws E0708 for nested tensors and for layouts other than strided.
void requireDense(const std::vector<at::Tensor>& inputs);
/// The tensors in the form that the devices take. Throws E0708 for tensors that they do not take.
std::vector<at::Tensor> deviceInputs(const std::vector<at::Tensor>& given, const ArgumentRules& rules);
/// Converts to the types that a program was compiled for. They can differ if an argument is a result of the last call,
/// which may have a narrower type.
std::vector<at::Tensor> inTypes(std::vector<at::Tensor> inputs, const std::vector<Type>& compiled,
                                const Policy& policy);

/// Throws E0708 if an argument that a step writes shares memory with another one, because devices copy each argument.
/// written: indices of the written arguments.
void requireApart(const std::vector<at::Tensor>& inputs, const std::vector<size_t>& written);

/// A value in the type that callers get. name: its name in messages. Throws E0609 for an integer that does not fit the
/// narrow type.
at::Tensor narrowed(const at::Tensor& value, const std::string& name, const Policy& policy);
/// Copies what a step wrote into its inputs back to the given tensors. written: indices of the written inputs. Throws
/// the errors of narrowed().
void writeBack(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& inputs,
               const std::vector<size_t>& written, const Policy& policy);
/// The results of a step as callers get them. Results that other processes get are undefined. constants: by result, the
/// shape in one micro-batch. Throws the errors of narrowed().
using Constants = std::map<size_t, std::vector<int64_t>>;
std::vector<at::Tensor> narrowedResults(std::vector<at::Tensor> results, const Constants& constants,
                                        const Policy& policy);

}  // namespace abele::calls
