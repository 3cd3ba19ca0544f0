// The linear layers that run on this thread. Set by composite_observer.cc, asked by rewrites.cc.
#pragma once

#include <vector>

#include <c10/core/ScalarType.h>

namespace abele::capture {

/// Element types of their inputs, which are those of their results; the innermost last.
inline std::vector<at::ScalarType>& linearTypes() {
  thread_local std::vector<at::ScalarType> types;
  return types;
}

}  // namespace abele::capture
