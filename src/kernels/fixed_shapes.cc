#include "kernels/operator_forms.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace abele::kernels {
namespace {

std::vector<int64_t> lengthsOf(const at::Tensor& tensor) {
  const at::Tensor lengths = tensor.to(at::kLong).contiguous();
  return {lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel()};
}

/// The number of states of the longest target: its labels and the blanks around them.
int64_t numStates(const std::vector<int64_t>& target_lengths) {
  const auto longest = std::max_element(target_lengths.begin(), target_lengths.end());
  return 2 * (longest == target_lengths.end() ? 0 : *longest) + 1;
}

// log_alpha has room for the longest targets that fit, not only for the longest in this batch.
std::tuple<at::Tensor, at::Tensor> ctcLoss(const at::Tensor& log_probs, const at::Tensor& targets,
                                           const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                                           int64_t blank, bool zero_infinity) {
  const std::vector<int64_t> lengths = lengthsOf(target_lengths);
  auto [loss, log_alpha] = at::_ctc_loss(log_probs, targets, lengthsOf(input_lengths), lengths, blank, zero_infinity);
  const int64_t room = 2 * (targets.dim() == 2 ? targets.size(1) : targets.numel()) + 1;
  at::Tensor padded = at::zeros({log_alpha.size(0), log_alpha.size(1), room}, log_alpha.options());
  padded.narrow(2, 0, log_alpha.size(2)).copy_(log_alpha);
  return {loss, padded};
}

at::Tensor ctcLossBackward(const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
                           const at::Tensor& input_lengths, const at::Tensor& target_lengths, const at::Tensor& loss,
                           const at::Tensor& padded, int64_t blank, bool zero_infinity) {
  const std::vector<int64_t> lengths = lengthsOf(target_lengths);
  const at::Tensor log_alpha = padded.narrow(2, 0, numStates(lengths)).contiguous();
  return at::_ctc_loss_backward(grad, log_probs, targets, lengthsOf(input_lengths), lengths, loss, log_alpha, blank,
                                zero_infinity);
}

// Makes the number of bins that the program asks for. Eager PyTorch makes more bins for larger values, which changes
// the shape.
at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t minlength) {
  const at::Tensor counts = at::bincount(self, weights, minlength);
  TORCH_CHECK(counts.numel() == minlength, "bincount: a value is ", counts.numel() - 1, ", and minlength ", minlength,
              " fixes the shape of the result: make it larger, or clamp the values");
  return counts;
}

// As torch computes the gradient of prod where a factor may be zero.
at::Tensor gradientBesideZeros(const at::Tensor& grad, const at::Tensor& factors, int64_t dim) {
  const int64_t size = factors.size(dim);
  std::vector<int64_t> first = factors.sizes().vec();
  first[static_cast<size_t>(dim)] = 1;
  const at::Tensor ones = at::ones(first, grad.options());
  const at::Tensor before = at::cat({ones, factors.narrow(dim, 0, size - 1)}, dim).cumprod(dim);
  const at::Tensor behind = at::cat({ones, factors.narrow(dim, 1, size - 1).flip(dim)}, dim).cumprod(dim).flip(dim);
  return grad * (before * behind).conj();
}

/// Along one dimension, which product has kept, or (product without dimensions) of all elements.
at::Tensor gradientWithZeros(const at::Tensor& grad, const at::Tensor& factors, const at::Tensor& product) {
  if (product.dim() == 0) return gradientBesideZeros(grad, factors.contiguous().view(-1), 0).view_as(factors);
  for (int64_t dim = 0; dim < factors.dim(); ++dim)
    if (product.size(dim) != factors.size(dim)) return gradientBesideZeros(grad, factors, dim);
  return grad;  // each product has one factor
}

// The gradient of prod: torch asks how many factors are zero, and chooses its formula.
at::Tensor prodBackward(const at::Tensor& grad, const at::Tensor& factors, const at::Tensor& product) {
  const at::Tensor result = grad * (product / factors).conj();
  const int64_t zeros = (factors == 0).sum().item<int64_t>();
  if (zeros == 0) return result;
  if (product.dim() == 0 && zeros > 1) return result.zero_();
  return result.copy_(gradientWithZeros(grad, factors, product));
}

// Asking for the number of zeros would wait for the device, so the formula for zeros serves all values.
at::Tensor prodBackwardOfDevice(const at::Tensor& grad, const at::Tensor& factors, const at::Tensor& product) {
  return at::empty_like(factors).copy_(gradientWithZeros(grad, factors, product));
}

// The sum over the weights of the chosen elements of index, as cross_entropy computes it. Other sums with zeros between
// them would have other roundings.
at::Tensor sumOfChosen(const at::Tensor& index, const at::Tensor& mask, const at::Tensor& weight) {
  return weight.gather(0, index.masked_select(mask)).sum();
}

torch::Library makeShapesLibrary() {
  torch::Library library(torch::Library::FRAGMENT, "abele_torch", std::nullopt, __FILE__, __LINE__);
  library.def(
      "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
      "bool zero_infinity) -> (Tensor, Tensor)");
  library.def(
      "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
      "Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool zero_infinity) -> Tensor");
  library.def("prod_backward(Tensor grad, Tensor self, Tensor result) -> Tensor");
  library.impl("prod_backward", c10::DispatchKey::CPU, TORCH_FN(prodBackward));
  library.impl("prod_backward", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(prodBackwardOfDevice));
  library.def("sum_of_chosen(Tensor index, Tensor mask, Tensor weight) -> Tensor");
  library.impl("sum_of_chosen", c10::DispatchKey::CPU, TORCH_FN(sumOfChosen));
  library.def("bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor");
  library.impl("bincount", c10::DispatchKey::CPU, TORCH_FN(bincount));
  library.impl("ctc_loss", c10::DispatchKey::CPU, TORCH_FN(ctcLoss));
  library.impl("ctc_loss_backward", c10::DispatchKey::CPU, TORCH_FN(ctcLossBackward));
  return library;
}

}  // namespace

void registerFixedShapeOperators() { static const torch::Library library = makeShapesLibrary(); }

}  // namespace abele::kernels
