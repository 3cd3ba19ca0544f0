// GELU by the error function over float32, with the bits of ATen's kernel. ATen hands it to oneDNN, which prepares each
// call for longer than it computes some ten thousand elements.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/kernels/exact_gelu_loops.h"

namespace abele::runtime {

/// The loops where this processor has some, and where a trial of every sign and exponent has shown the bits of ATen's
/// kernel with oneDNN enabled; else null.
const loops::ExactGelu* exactGelu();

/// gelu(x), and its gradient: by the loops where they give the bits of at::gelu, else by ATen's kernel. float32, on the
/// CPU; out has the sizes of x.
void exactGeluInto(at::Tensor& out, const at::Tensor& x);
void exactGeluBackwardInto(at::Tensor& out, const at::Tensor& grad, const at::Tensor& x);

}  // namespace abele::runtime
