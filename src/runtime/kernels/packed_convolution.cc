#include "runtime/kernels/packed_convolution.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <exception>
#include <optional>
#include <vector>

#include "runtime/kernels/known_trials.h"

namespace abele::runtime {
namespace {

constexpr const char* kPack = "mkldnn_prepacked::conv2d_prepack";

std::optional<c10::OperatorHandle> operatorNamed(const char* name) {
  return c10::Dispatcher::singleton().findSchema({name, ""});
}

at::Tensor plain(const ConvolutionOperands& operands, const at::Tensor& input) {
  const std::optional<at::Tensor> bias = operands.bias.defined() ? std::optional(operands.bias) : std::nullopt;
  return at::convolution(input, operands.weight, bias, operands.stride, operands.padding, operands.dilation,
                         /*transposed=*/false, std::vector<int64_t>(operands.stride.size(), 0), operands.groups);
}

at::Tensor packed(const ConvolutionOperands& operands, const at::Tensor& input) {
  torch::jit::Stack stack = {input, packConvolution(operands, input.sizes())};
  operatorNamed(kPackedConvolution)->callBoxed(stack);
  return stack[0].toTensor();
}

// What ATen looks at when it chooses a kernel. Programs may set it between two steps.
std::vector<int64_t> settings() {
  const at::Context& context = at::globalContext();
  const at::Float32Precision precision = context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV);
  return {at::get_num_threads(), context.userEnabledMkldnn(), context.deterministicMkldnn(),
          static_cast<int64_t>(precision)};
}

bool trial(const ConvolutionOperands& operands, at::IntArrayRef input_sizes) {
  if (!operatorNamed(kPack) || !operatorNamed(kPackedConvolution)) return false;
  at::Generator generator = at::detail::createCPUGenerator(/*seed_val=*/20261124);
  const auto random = [&](at::IntArrayRef sizes) {
    at::Tensor tensor = at::empty(sizes, at::kFloat);
    return tensor.normal_(0, 1, generator);
  };
  ConvolutionOperands tried = operands;
  int64_t rounds = 1;
  for (int64_t round = 0; round < rounds; ++round) {
    tried.weight = random(operands.weight.sizes());
    if (operands.bias.defined()) tried.bias = random(operands.bias.sizes());
    const at::Tensor input = random(input_sizes), expected = plain(tried, input);
    rounds = trialRounds(expected.numel(), input.numel() + tried.weight.numel(), /*least=*/1);
    try {
      const at::Tensor found = packed(tried, input);
      if (found.strides() != expected.strides() || !at::equal(found, expected)) return false;
    } catch (const std::exception&) {
      return false;  // the library has no packed form of it
    }
  }
  return true;
}

}  // namespace

c10::IValue packConvolution(const ConvolutionOperands& operands, at::IntArrayRef input_sizes) {
  torch::jit::Stack stack = {operands.weight,   operands.bias.defined() ? c10::IValue(operands.bias) : c10::IValue(),
                             operands.stride,   operands.padding,
                             operands.dilation, operands.groups,
                             input_sizes,       "none"};
  operatorNamed(kPack)->callBoxed(stack);
  return stack[0];
}

bool packedConvolutionHasBits(const ConvolutionOperands& operands, at::IntArrayRef input_sizes) {
  using Key = std::vector<std::vector<int64_t>>;
  static auto& known = *new KnownTrials<Key, bool>;
  const Key key = {operands.weight.sizes().vec(),
                   input_sizes.vec(),
                   operands.stride,
                   operands.padding,
                   operands.dilation,
                   {operands.groups, operands.bias.defined()},
                   settings()};
  return known.of(key, [&] { return trial(operands, input_sizes); });
}

}  // namespace abele::runtime
