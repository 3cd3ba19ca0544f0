// Compares two captures of one call. Used by compile/compiler.cc.
#pragma once

#include <optional>
#include <string>

#include "capture/capture.h"

namespace abele::capture {

/// The first place where two captures of the same call differ.
struct Parting {
  std::string op, source, scope;  // the operator; empty if a result differs
  std::string first, second;      // the two values that differ
};

/// Compares the operators whose results depend on inputs, weights or random numbers one by one. Compares other tensors
/// by their contents where these operators read them, because a program may prepare a mask once and keep it. Requires:
/// both with Request::prints_contents.
std::optional<Parting> compare(const Recording& first, const Recording& second);

/// Throws E0106 if forward seeds torch's default generator in both captures and draws after it. If only one capture
/// shows it, another thread may have seeded the generator.
void requireUnseeded(const Recording& first, const Recording& second);

/// The print of a tensor's type and of its elements in order.
ContentsPrint printOf(const at::Tensor& tensor);

}  // namespace abele::capture
