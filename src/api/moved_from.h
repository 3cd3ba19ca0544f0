// For api/ only: access to objects that may have been moved from.
#pragma once

#include <memory>

#include "base/error.h"

namespace abele {

/// Returns the implementation. Throws E0801 if the object was moved from. what: the object's name.
template <class Impl>
Impl& here(const std::unique_ptr<Impl>& impl, const char* what) {
  ABELE_REQUIRE(impl, E0801,
                {.what = cat("this ", what, " was moved from"), .remedy = "use the object that it was moved to"});
  return *impl;
}

}  // namespace abele
