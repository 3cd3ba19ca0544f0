// Compares two captures of one call. Used by compile/compiler.cc.
#pragma once

#include <optional>
#include <string>

#include "capture/capture.h"

namespace abele::capture {

/// Where two captures of the same call part first.
struct Parting {
  std::string op, source, scope;  // the operator; empty where a result differs
  std::string first, second;      // the two values that differ
};

/// Compares operators whose results depend on inputs, weights and random numbers one by one, and other tensors by their
/// contents where those operators read them: a program may keep a mask that it has prepared. Requires: both with
/// Request::prints_contents.
std::optional<Parting> compare(const Recording& first, const Recording& second);

/// Throws E0106 if forward seeds torch's default generator in both captures and draws after it. Another thread, which
/// may seed as well, does not do so twice at that place.
void requireUnseeded(const Recording& first, const Recording& second);

/// The type and the elements, in their order.
ContentsPrint printOf(const at::Tensor& tensor);

}  // namespace abele::capture
