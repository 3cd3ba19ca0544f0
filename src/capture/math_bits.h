// The bits of a tensor by which its memory is read conjugated or negated (Tensor.conj(), and Tensor.imag of the
// result). Used by the parts of recorder.h.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>

namespace abele::capture {

/// Bit 0: the tensor is conjugated; bit 1: it is negated.
inline int64_t mathBits(const at::Tensor& tensor) { return (tensor.is_conj() ? 1 : 0) + (tensor.is_neg() ? 2 : 0); }

/// A tensor on the same memory without these bits.
inline at::Tensor withoutMathBits(const at::Tensor& tensor) {
  at::Tensor plain = tensor;
  if (plain.is_conj()) plain = at::_conj(plain.detach());
  if (plain.is_neg()) plain = at::_neg_view(plain.detach());
  return plain;
}

/// A tensor of the same values without these bits. An operator computes it if a bit is set.
inline at::Tensor resolved(const at::Tensor& tensor) {
  // No call of torch if there is nothing to do: inside a transform of torch.func it would wrap the tensor.
  return mathBits(tensor) == 0 ? tensor : tensor.resolve_conj().resolve_neg();
}

}  // namespace abele::capture
