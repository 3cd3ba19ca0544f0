// The linear layers that are running on this thread. composite_observer.cc sets them and rewrites.cc reads them.
#pragma once

#include <vector>

#include <c10/core/ScalarType.h>

namespace abele::capture {

/// Element types of their inputs, which their results also have; the innermost layer is last.
inline std::vector<at::ScalarType>& linearTypes() {
  thread_local std::vector<at::ScalarType> types;
  return types;
}

}  // namespace abele::capture
