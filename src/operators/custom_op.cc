// Operators that other libraries register, and FastGatherLastDim, which is built in.
#include <map>
#include <mutex>
#include <tuple>

#include <ATen/Parallel.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "abele/custom_op.h"
#include "base/error.h"
#include "base/fork.h"
#include "capture/annotate.h"
#include "operators/library.h"

namespace abele {
namespace {

using Tensors = std::vector<at::Tensor>;
using Key = std::tuple<std::string, std::string, int64_t>;
using CustomSignature = Tensors(at::TensorList, std::string, std::string, int64_t, std::string);
using GradientSignature = Tensors(at::TensorList, at::TensorList, at::TensorList, std::string, std::string, int64_t,
                                  std::string);

struct Registered {
  CustomOp op;
  int times = 0;
};

/// Never destroyed: libraries register operators and programs run until the process ends.
struct Registry {
  ProcessMutex mutex;
  std::map<Key, Registered> ops;
  static Registry& instance() {
    static auto* registry = new Registry();
    return *registry;
  }
};

std::string nameOf(const std::string& domain, const std::string& name, int64_t version) {
  return cat("custom operator ", domain, "::", name, " version ", version);
}

const CustomOp& find(const std::string& domain, const std::string& name, int64_t version) {
  Registry& registry = Registry::instance();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.ops.find({domain, name, version});
  ABELE_REQUIRE(
      found != registry.ops.end(), E0106,
      {.what = cat(nameOf(domain, name, version), " is not registered"),
       .remedy = cat("load its library before the model is compiled: ", inLanguage("dlopen(path, RTLD_NOW)"))});
  ABELE_REQUIRE(found->second.times == 1, E0708,
                {.what = cat(nameOf(domain, name, version), " is registered ", found->second.times, " times"),
                 .remedy = "load only one of the libraries that define it"});
  ABELE_REQUIRE(found->second.op.infer && found->second.op.forward, E0708,
                {.what = cat(nameOf(domain, name, version), " has no ", found->second.op.infer ? "forward" : "infer"),
                 .remedy = "register it with both functions"});
  return found->second.op;
}

TensorInfo infoOf(const at::Tensor& tensor) { return {static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()}; }

std::vector<TensorInfo> infosOf(at::TensorList tensors) {
  std::vector<TensorInfo> infos;
  for (const at::Tensor& tensor : tensors) infos.push_back(infoOf(tensor));
  return infos;
}

CustomContext contextHere() { return {.num_threads = at::get_num_threads()}; }

struct CustomFunction : torch::autograd::Function<CustomFunction> {
  // Autograd looks for tensors that require gradients in a TensorList, and in no other kind of list.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                                                std::string domain, std::string name, int64_t version,
                                                std::string attributes) {
    Tensors outputs;
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      outputs =
          operators::operatorOf<CustomSignature>("abele_op::custom_op").call(inputs, domain, name, version, attributes);
    }
    torch::autograd::variable_list saved(inputs.begin(), inputs.end());
    saved.insert(saved.end(), outputs.begin(), outputs.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    context->saved_data["domain"] = std::move(domain);
    context->saved_data["name"] = std::move(name);
    context->saved_data["version"] = version;
    context->saved_data["attributes"] = std::move(attributes);
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto& data = context->saved_data;
    const int64_t num_inputs = data["inputs"].toInt();
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Tensors inputs(saved.begin(), saved.begin() + num_inputs);
    const Tensors outputs(saved.begin() + num_inputs, saved.end());
    for (size_t i = 0; i < grads.size(); ++i)
      if (!grads[i].defined()) grads[i] = at::zeros(outputs[i].sizes(), outputs[i].options());
    Tensors results = operators::operatorOf<GradientSignature>("abele_op::custom_op_gradient")
                          .call(inputs, outputs, grads, data["domain"].toStringRef(), data["name"].toStringRef(),
                                data["version"].toInt(), data["attributes"].toStringRef());
    results.resize(num_inputs + 4);
    return results;
  }
};

}  // namespace

RegisterCustomOp::RegisterCustomOp(CustomOp op) {
  Registry& registry = Registry::instance();
  std::lock_guard lock(registry.mutex);
  // No exception here: a static object of a library that is being loaded runs this, and nothing would catch it.
  Registered& entry = registry.ops[{op.domain, op.name, op.version}];
  if (++entry.times == 1) entry.op = std::move(op);
}

namespace operators {

Tensors customKernel(at::TensorList inputs, std::string domain, std::string name, int64_t version,
                     std::string attributes) {
  const CustomOp& op = find(domain, name, version);
  const CustomAttributes values = CustomAttributes::parse(attributes);
  const std::vector<TensorInfo> expected = op.infer(infosOf(inputs), values);
  Tensors outputs = op.forward(contextHere(), inputs.vec(), values);
  ABELE_REQUIRE(
      infosOf(outputs) == expected, E0708,
      {.what = cat(nameOf(domain, name, version), " computed other shapes or types than its infer function")});
  for (at::Tensor& output : outputs)
    for (const at::Tensor& input : inputs)
      if (output.is_alias_of(input)) output = output.clone();
  return outputs;
}

Tensors customGradientKernel(at::TensorList inputs, at::TensorList outputs, at::TensorList grads, std::string domain,
                             std::string name, int64_t version, std::string attributes) {
  const CustomOp& op = find(domain, name, version);
  Tensors results =
      op.backward(contextHere(), inputs.vec(), outputs.vec(), grads.vec(), CustomAttributes::parse(attributes));
  ABELE_REQUIRE(results.size() == inputs.size(), E0708,
                {.what = cat("the gradient of ", nameOf(domain, name, version), " has ", results.size(), " tensors"),
                 .expected = cat(inputs.size(), ", one per input")});
  for (at::Tensor& result : results)
    if (result.defined()) result = result.clone();
  return results;
}

Tensors customDifferentiably(at::TensorList inputs, std::string domain, std::string name, int64_t version,
                             std::string attributes) {
  const bool differentiates =
      c10::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.requires_grad(); });
  ABELE_REQUIRE(!differentiates || find(domain, name, version).backward, E0106,
                {.what = cat(nameOf(domain, name, version), " has no gradient"),
                 .remedy = "register one, detach() its inputs, or use it in inference only"});
  return CustomFunction::apply(inputs, std::move(domain), std::move(name), version, std::move(attributes));
}

}  // namespace operators

namespace ops {

Tensors customOp(const Tensors& inputs, const std::string& domain, const std::string& name, int64_t version,
                 const std::vector<TensorInfo>& outputs, const CustomAttributes& attributes) {
  const CustomOp& op = find(domain, name, version);
  const auto count = static_cast<int>(inputs.size());
  ABELE_REQUIRE(count >= op.min_inputs && count <= op.max_inputs, E0708,
                {.what = cat(nameOf(domain, name, version), " called with ", count, " inputs"),
                 .expected = cat(op.min_inputs, " to ", op.max_inputs)});
  const std::vector<TensorInfo> inferred = op.infer(infosOf(inputs), attributes);
  ABELE_REQUIRE(inferred == outputs, E0708,
                {.what = cat("the example outputs do not fit ", nameOf(domain, name, version)),
                 .found = cat(outputs.size(), " tensors"),
                 .expected = cat(inferred.size(), " tensors, of the shapes and types that it infers")});
  return operators::operatorOf<CustomSignature>("abele_op::custom_op")
      .call(inputs, domain, name, version, attributes.str());
}

}  // namespace ops

namespace {

// out[..., i] = data[..., index[..., i]]. Source: spec clients.md, item 10.
const RegisterCustomOp fast_gather({
    .domain = "poptorch.custom_ops",
    .name = "FastGatherLastDim",
    .version = 1,
    .min_inputs = 2,
    .max_inputs = 2,
    .infer = [](const CustomOp::Infos& inputs,
                const CustomAttributes&) { return CustomOp::Infos{{inputs[0].dtype, inputs[1].sizes}}; },
    .forward = [](const CustomContext&, const Tensors& inputs,
                  const CustomAttributes&) { return Tensors{at::gather(inputs[0], -1, inputs[1].to(at::kLong))}; },
    .backward =
        [](const CustomContext&, const Tensors& inputs, const Tensors&, const Tensors& grads, const CustomAttributes&) {
          at::Tensor grad = at::zeros(inputs[0].sizes(), inputs[0].options());
          grad.scatter_add_(-1, inputs[1].to(at::kLong), grads[0]);
          return Tensors{grad, at::Tensor()};
        },
});

}  // namespace
}  // namespace abele
